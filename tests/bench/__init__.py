"""What the benchmarks reckon and draw; their scenarios are run by whoever wants figures."""
