"""The parts that decoders share: from messages to Arrow.

`opening` (compressed messages), `template` and `compiled` (the form of a table's messages), `binary`
(decoders of Avro), `assemble` and `joined` (cells to batches), `sums` (checksums).
"""
