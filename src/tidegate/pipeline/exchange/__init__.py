"""Files, messages and connections between control process, host and workers.

`feed` (the files of an incarnation, and the grant), `work` (messages between host and workers), `lines`
(their connection), `questions` (of a worker on another machine), `beats` (signs of life), `ranges`
(which are due), `pace` (how often), `ahead` (rows that were delivered before).
"""
