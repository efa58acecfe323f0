"""The sink of readers: the capture stores changes in a file until a Spark query has read them."""
