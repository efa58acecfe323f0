"""The host: gives the waiting work of all changefeeds to the workers, and watches them.

`host` puts the parts together: `incarnations`, `incarnation`, `backlog` and `due_scan` (what is due),
`timetable` (whose turn it is), `placement` and `conversation` (work out, results in), `leases` (of
slots), `load` and `load_requests` (initial loads), `workforce`, `connected_worker`, `supply` and `jobs`
(the workers and the Spark jobs they come from), `signs_of_life`, `threads`, `failures`, `processes`.
"""
