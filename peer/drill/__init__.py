"""Drills: a rehearsal of a disaster on a fork of this cluster's tables, while everything else goes on.

Promises: replay, folds and shipping never wait for a drill, and a failover can begin while one runs. The fork has every
table at one commit time, copies no data, and takes the probes' writes in scratch tables of its own. It is gone when the
drill ends; replay's housekeeping removes what a killed one leaves.

Relies on: tags, which keep snapshots from expiring; ``peer/tables/read.py``, which reads a table as of a commit time.

Begin at ``run.py``. ``instant.py`` decides what is forked, ``fork.py`` opens it, ``probes.py`` runs what the user gave,
``report.py`` tells about it.
"""
