"""etcd: what several captures share. Keys and transactions, a lease per capture, the election of the owner.

Reading order: client (calls, endpoints, patience), metadata (the store's contract over it), session (the
lease), election.
"""
