"""The style of web pages: a drill's report and the monitor. A page needs nothing from elsewhere."""

STYLE = """
:root { --ink: #1b2733; --soft: #5c6b7a; --line: #dde4ec; --good: #14733f; --bad: #b3261e; --blue: #2463a8; }
* { box-sizing: border-box; }
body { margin: 0; background: #f4f6f9; color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
main { max-width: 1000px; margin: 0 auto; padding: 32px 20px 48px; }
header { display: flex; justify-content: space-between; align-items: flex-start; gap: 16px; margin-bottom: 20px; }
h1 { font-size: 26px; margin: 0 0 2px; letter-spacing: -.01em; }
h2 { font-size: 16px; margin: 0 0 10px; }
.soft { color: var(--soft); }
.verdict { font-weight: 700; font-size: 17px; padding: 8px 20px; border-radius: 999px;
  color: #fff; white-space: nowrap; }
.passed { background: var(--good); } .failed { background: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 14px; margin-bottom: 16px; }
.tile, section { background: #fff; border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 14px 18px; } .tile b { display: block; font-size: 27px; line-height: 1.25; letter-spacing: -.02em; }
section { padding: 18px 20px; margin-bottom: 16px; overflow-x: auto; } section > :last-child { margin-bottom: 0; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 13px; }
th, td { padding: 7px 10px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ok { color: var(--good); font-weight: 600; } .no { color: var(--bad); font-weight: 600; }
ul, ol { margin: 0; padding-left: 20px; } li { margin: 2px 0; }
code, pre { font: 12.5px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: #f4f6f9; border-radius: 6px; padding: 10px 12px; margin: 8px 0 4px; overflow-x: auto;
  white-space: pre-wrap; }
summary { cursor: pointer; }
svg { width: 100%; min-width: 560px; height: auto; display: block; }
svg text { font: 11.5px system-ui, sans-serif; fill: var(--soft); } svg .phase { fill: var(--blue); font-weight: 600; }
svg .grid { stroke: #e3e8ee; } svg .line { fill: none; stroke: var(--blue); stroke-width: 2; stroke-linejoin: round; }
svg .area { fill: var(--blue); opacity: .1; } svg .dot { fill: var(--blue); }
@media (max-width: 720px) { .tiles { grid-template-columns: repeat(2, 1fr); } header { flex-direction: column; } }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
"""
