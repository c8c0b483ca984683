"""Tests of duly; they mirror `src/duly`, with stories, the simulation and tidiness rules beside."""
