"""Rules about the project's own text: layout, size, doors, words, samples."""
