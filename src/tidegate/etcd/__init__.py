"""etcd, which several captures share: keys and transactions, a lease for each capture, the owner's election.

Reading order: client (calls, endpoints, retries), metadata (the metadata store over it), session (the lease),
election.
"""
