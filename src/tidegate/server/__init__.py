"""The control process: it runs the control machines and has every edge of the control plane.

At the top: `capture` (a node, from its start to its end), `tenure` (its terms as owner), `node` (what its
changefeeds share) and `feed_ddl` (a changefeed's view of DDL; its owner has one, and each processor).

Rooms, in reading order: `changefeeds` (all requests of users), `owner` and `processor` (the two sides of a
changefeed, which know each other only by messages), `delivery` (how rows and DDL reach the sink), `pulling`
(the spans that are followed), `catalogue` (upstream's tables), `captures` (other captures), `metadata` (the
store of changefeeds and grants), `supervision` (child processes).
"""
