"""Rules about the project's own text: layout, size, imports, words, samples."""
