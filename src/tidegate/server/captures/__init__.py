"""A capture among others: its data folder, its session and term as owner, and the messages between them.

`data_folder`, `membership` and `candidacy` (a session in the etcd, the turn as owner), `lifetime` (why
a capture ends), `message_router` and `message_client` (messages between owners and processors),
`key_loads_client` (an owner's question about a hot span), `recorder` (files of all decisions).
`capture_process` (what stays from session to session).
"""
