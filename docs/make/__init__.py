"""Makes the generated pages of docs/ from the configuration classes, the metrics, and the markers of the tests."""
