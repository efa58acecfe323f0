"""Whether topics keep the contract between their producer and its readers (docs/formats/contract.md)."""
