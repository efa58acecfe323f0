"""The metadata store as a capture uses it.

`sqlite` (the store of a capture without an etcd; the other is `etcd.metadata`), `ownership` (what is
read and written before a capture owns changefeeds), `commits` (many writes in one commit).
"""
