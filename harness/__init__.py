"""One rank's work: reads `config.yaml` of a run folder, trains a reference model, writes the files of its rank.

torchrun starts it as `python -m rankscope.harness RUN_DIR PASS`; docs/run-folder.md says what it writes.
"""
