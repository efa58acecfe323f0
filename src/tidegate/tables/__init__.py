"""Tables of a cluster as they were at one timestamp, read along regions by Spark tasks."""
