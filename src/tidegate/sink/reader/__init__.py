"""The sink of readers: changes are kept in a file of the capture until a Spark query has taken them."""
