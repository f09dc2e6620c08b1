"""The one place that names concrete classes: build, run, resume."""
