"""The master: observes ledger and ZooKeeper, plans with ``core/planner``, and acts, each decision under its term."""
