"""Commit sequences: operations of several steps that are finished after any crash, each step's effect exactly once.

An operation is data. Its steps (``step.CommitStep``: ``verify``, ``execute``, ``describe``) are stored, durably, before
the first one runs. Then each is verified, else executed and verified again, and at the end the steps are removed. Who
is killed leaves them; whoever comes next redoes them, before new work on the same URN::

    @step_type("watermark.set")
    @dataclass(frozen=True)
    class SetWatermark(CommitStep[Watermarks]):
        partition: str
        offset: int

        def verify(self, context): return context.get(self.partition) == self.offset
        def execute(self, context): context.put(self.partition, self.offset)
        def describe(self): return f"set the watermark of {self.partition} to {self.offset}"

    with Leases(ledger.steps) as leases:                      # one per process; renews what it runs
        if not Redo(leases, context).before_work("publish", urn).allows_new_work:
            return                                            # FAILED, SUSPENDED or HELD: leave this URN out
        sequence = SequenceBuilder(ledger.steps, "publish", urn).add(*steps).build()
        sequence.commit(context, leases)                      # False: logged, counted and kept

``run`` does what ``commit`` does and raises. ``builder.describe()`` is the plan for ``--plan``. ``pool.commit_all`` and
``pool.redo_all`` do thousands at once. A verb has the cluster's name as store and the operation's name as URN.

Promises: a sequence is stored whole or not at all. One process at a time runs it, by a lease (``leases.Leases``). The
lease ends after 15 s, or at once when a process of the same machine sees that its owner has ended. After
``failures_max`` failed runs that sequence alone is suspended, until ``walship ops retry``. A stored step of an unknown
kind or version is refused, not skipped. What the store shows is stored with it: steps done, last error, failures, and
who runs it.

Relies on: steps that may run twice, also at once after a process was frozen, and whose ``verify`` tells identity and
stays true once later steps are done. A lease is not proof (rule 6).

Stores: ``ledger.steps`` (SQL), ``file_store.FileCommitSteps`` (any fsspec store); both are ``CommitStepStore``.
"""
