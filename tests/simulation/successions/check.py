"""What must hold in the end, once everything is whole again and every command was finished or undone."""

from __future__ import annotations

from functools import partial

from replication.core.ids import ClusterId
from replication.core.roles import Role
from tests.simulation.successions.commands import Commands
from tests.simulation.successions.site import Site
from tests.simulation.successions.world import World

_ROUNDS = 40
_TRIES = 8


def settle(world: World, commands: Commands) -> None:
    """Everything is whole; commands are finished or undone, all frames arrive, and lost writes are decided."""
    world.trouble, world.command = 0.0, None
    world.cuts.clear()
    for site in world.sites.values():
        site.zookeeper.heal()
        world.now_us += 20_000_000
        site.restart()
        world.do(site.writer.kill)
    _quiet(world, commands)
    _finish(world, commands)
    _quiet(world, commands)
    _one_active(world, commands)
    # A STANDBY cannot undo what the ACTIVE cluster itself wrote while another one took writes, too.
    merges = world.events["two ACTIVE"] or world.chance.random() < 0.5
    decide = commands.merge if merges else commands.discard
    _check_losses(world, commands)
    while any(site.lost for site in world.sites.values()):  # what is decided at one cluster is new at another
        for site in sorted(world.sites.values(), key=lambda site: site not in world.active()):
            decide(site)
        _quiet(world, commands)


def _quiet(world: World, commands: Commands) -> None:
    """All frames and successions arrive everywhere."""
    for _ in range(_ROUNDS):
        world.now_us += 1_000_000
        before = _progress(world)
        for site in world.sites.values():
            site.keep()
            world.do(site.writer.renew)
            site.refresh()
            for peer in site.sent:
                if (stream := site.streams.get(peer.name)) and stream.told != site.known():
                    del site.streams[peer.name]  # opened again, so that what is known is told
                world.do(partial(site.ship_to, peer, 1000))
            world.do(site.replay)
        if before == _progress(world):
            break
    if any(commands.unfinished(site) for site in world.sites.values()):
        return  # a peer that agreed to a cancellation refuses frames until that is finished here
    if any(site.pending(peer) for site in world.sites.values() for peer in site.peers()):
        world.problems.append("frames do not arrive although everything is whole")


def _progress(world: World) -> list[tuple[int, int, int]]:
    return [
        (len(site.store), len(site.applied) + len(site.lost), len(site.ledger.successions.known().all))
        for site in world.sites.values()
    ]


def _finish(world: World, commands: Commands) -> None:
    for site in world.sites.values():
        for number in range(_TRIES):
            if not commands.unfinished(site):
                break
            if commands.run(partial(commands.again, site)) or number < 2:
                continue
            if not commands.run(partial(commands.cancel, site)) and number >= 4:
                commands.abandon(site)
                world.did("abandoned")
        else:
            world.problems.append(f"{site.name} has an unfinished role change that can neither be finished nor undone")


def _one_active(world: World, commands: Commands) -> None:
    """One cluster takes writes; where two do, that is an alarm."""
    active = world.active()
    if not active:
        world.problems.append(f"no cluster takes writes: {_roles(world)}")
    if len(active) > 1:
        world.did("two ACTIVE")
        if not any(site.alarms() for site in active):
            world.problems.append(f"two clusters take writes, and none says so: {_roles(world)}")
        for site in active[1:]:
            commands.readonly(site, Role.STANDBY)
        _quiet(world, commands)


def _roles(world: World) -> str:
    states = {site.name: site.state() for site in world.sites.values()}
    known = {site.name: list(map(str, site.ledger.successions.known().all)) for site in world.sites.values()}
    return f"{states}; {known}"


def _check_losses(world: World, commands: Commands) -> None:
    """What an unplanned succession left out is what it said before, and nothing else is lost."""
    for site in world.sites.values():
        for made in site.ledger.successions.known().all:
            beyond = [stored for stored in site.applied if made.leaves_out(stored.view.header)]
            if beyond and made.successor == site.id:
                world.problems.append(f"{site.name} applied {len(beyond)} frames that it left out: {made}")
        acked = {(each.stream, each.sequence): each for each in site.writer.acked}
        for other in world.sites.values():
            left_out: dict[tuple[ClusterId, ClusterId, int], int] = {}
            for key, (_, name) in other.lost.items():
                if key not in acked:
                    continue
                successions = other.ledger.successions.known().all
                succession = next(each for each in successions if str(each) == name)
                which = (succession.successor, succession.origin, succession.epoch)
                told = commands.told.get(which)
                if told is None:
                    world.problems.append(f"{other.name} left out {key} of {site.name} without a failover: {name}")
                elif acked[key].commit <= told.announced:
                    left_out[which] = left_out.get(which, 0) + 1
            for which, frames in left_out.items():
                if frames > commands.told[which].frames:
                    world.problems.append(f"{other.name} lost {frames} announced frames of {which}, more than it said")


def check(world: World) -> None:
    """Nothing acked is lost, nothing was applied twice, and all clusters that are sent everything are equal."""
    for site in world.sites.values():
        keys = [stored.key for stored in site.applied]
        if len(keys) != len(set(keys)):
            world.problems.append(f"{site.name} applied frames twice")
        for origin in _origins(world, site):
            missing = [each for each in origin.writer.acked if (each.stream, each.sequence) not in site.have]
            if missing:
                world.problems.append(f"{site.name} never got {len(missing)} acked frames of {origin.name}")
    rows = {site.name: {key: value for key, (_, value) in site.rows().items()} for site in world.sites.values()}
    all_sent = [site for site in world.sites.values() if len(_origins(world, site)) == len(world.sites)]
    for site in all_sent[1:]:
        if rows[site.name] != rows[all_sent[0].name]:
            world.problems.append(f"{site.name} and {all_sent[0].name} differ: {rows}; {_roles(world)}")


def _origins(world: World, site: Site) -> list[Site]:
    """Whose frames come to a cluster: its own, and those of every cluster that a way leads from."""
    found = {site.name}
    while (
        more := {other.name for other in world.sites.values() if {peer.name for peer in other.peers()} & found} - found
    ):
        found |= more
    return [world.sites[name] for name in sorted(found)]
