"""The look of a report: one style sheet, light and dark.

Colours follow the Okabe-Ito palette, which people with any kind of colour blindness can
distinguish; dark mode has lighter versions. Red marks faults only, and is always hatched.
Tests: test_page.py.
"""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --sheet: #f6f7f9; --ink: #16202b; --soft: #55606d; --rule: #d9dee4;
  --good: #0b6e4f; --good-paper: #e8f5ef; --bad: #b3261e; --bad-paper: #fdecea;
  --c1: #0a6aa6; --c2: #d98e04; --c3: #0b8a66; --c4: #b4568c;
  --c5: #3f8fc4; --c6: #8a6d00; --c7: #5a54a8; --c8: #5d6b78;
  --danger: #c62828; --quiet: #8793a0; --on-band: #ffffff; --on-light-band: #16202b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12171d; --sheet: #1a2129; --ink: #e7ecf1; --soft: #a3aeba; --rule: #323c47;
    --good: #5fd3a6; --good-paper: #12291f; --bad: #ff8a80; --bad-paper: #331716;
    --c1: #58b0ea; --c2: #f2b544; --c3: #3fc99b; --c4: #e391bd;
    --c5: #93cdf2; --c6: #d8c15a; --c7: #aaa5ee; --c8: #a9b5c1;
    --danger: #ff6b60; --quiet: #7b8794; --on-band: #0d1217; --on-light-band: #0d1217;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 66rem;
  background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.015em; }
h2 { font-size: 1.3rem; margin: 0 0 .5rem; letter-spacing: -.01em; }
p { margin: 0 0 .9rem; max-width: 46rem; }
code { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.lead { color: var(--soft); font-size: 1.06rem; }
section { margin-top: 2.75rem; padding-top: 1.4rem; border-top: 1px solid var(--rule); }
.tiles {
  display: grid; gap: .75rem; margin: 1.5rem 0;
  grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr));
}
.tile { background: var(--sheet); border-radius: .5rem; padding: .85rem 1rem; }
.tile .figure { font-size: 1.55rem; font-weight: 620; line-height: 1.2; white-space: nowrap;
  font-variant-numeric: tabular-nums; letter-spacing: -.01em; }
.tile .what { font-size: .9rem; }
.tile .note { font-size: .82rem; color: var(--soft); }
.checks { border-radius: .5rem; padding: 1rem 1.25rem; margin: 1.5rem 0; }
.checks.good { background: var(--good-paper); }
.checks.bad { background: var(--bad-paper); }
.verdict { font-weight: 620; font-size: 1.08rem; margin: 0 0 .5rem; }
.checks ul { list-style: none; margin: 0; padding: 0; }
.checks li { display: grid; grid-template-columns: 1.5rem 1fr auto; column-gap: .25rem;
  padding: .18rem 0; align-items: baseline; }
.checks .sign { font-weight: 700; }
.checks li.good .sign { color: var(--good); }
.checks li.bad .sign, .checks li.bad .condition { color: var(--bad); font-weight: 620; }
.checks .found { color: var(--soft); font-variant-numeric: tabular-nums; text-align: right; }
.spoken { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
figure { margin: 1.4rem 0 1.8rem; }
figcaption { font-weight: 560; margin-bottom: .45rem; max-width: 46rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 0 0 .5rem;
  font-size: .88rem; color: var(--soft); }
.key { display: inline-flex; align-items: center; gap: .4rem; }
.swatch { display: inline-block; width: 1.15rem; height: .8rem; border-radius: 2px;
  background: currentColor; color: var(--tone); }
.swatch.tone-none, .swatch.tone-both {
  background: repeating-linear-gradient(135deg, var(--danger) 0 2px, transparent 2px 5px);
  border: 1px solid var(--danger); }
.swatch.tone-both { background:
  repeating-linear-gradient(135deg, var(--danger) 0 2px, transparent 2px 5px),
  repeating-linear-gradient(45deg, var(--danger) 0 2px, transparent 2px 5px); }
/* A shade at the edge behind which there is more. */
.scroll { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 3rem 100% local no-repeat,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 3rem 100% local no-repeat,
  linear-gradient(to right, var(--rule), transparent) left / 1rem 100% scroll no-repeat,
  linear-gradient(to left, var(--rule), transparent) right / 1rem 100% scroll no-repeat; }
table { border-collapse: collapse; font-size: .93rem; margin: .6rem 0 1.2rem; min-width: 26rem; }
caption { text-align: left; font-weight: 560; padding: .2rem 0 .35rem; }
th, td { text-align: left; padding: .34rem 1rem .34rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { vertical-align: bottom; font-weight: 560; color: var(--soft); font-size: .86rem; }
td { font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
td:first-child { white-space: nowrap; }
th:last-child, td:last-child { padding-right: 0; }
td:last-child:not(.number) { overflow-wrap: anywhere; min-width: 7rem; }
.number { text-align: right; }
.bars { list-style: none; margin: 0; padding: 0; display: grid; gap: .3rem .7rem;
  grid-template-columns: fit-content(22rem) 1fr; font-size: .82rem; align-items: center; }
.bars li { display: contents; }
.bars .row-name { text-align: right; overflow-wrap: anywhere; }
.bars .track { display: flex; align-items: center; gap: .5rem; padding-right: 6rem; }
.bars li { --bar: 1.1rem; }
.bars .band { flex: none; height: var(--bar); border-radius: 2px; background: var(--tone); }
.bars .value { white-space: nowrap; font-variant-numeric: tabular-nums; }
.bars .note { color: var(--soft); }
.plot { display: block; width: 100%; min-width: 44rem; height: auto;
  font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
.plot text { fill: var(--soft); font-variant-numeric: tabular-nums; }
.plot .label { stroke: var(--paper); stroke-width: 4px; paint-order: stroke; }
.plot .row-name, .plot .value { fill: var(--ink); }
.plot .note { fill: var(--soft); white-space: pre; }
.plot .axis { stroke: var(--quiet); stroke-width: 1; }
.plot .grid { stroke: var(--rule); stroke-width: 1; }
.plot .mark { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 3 3; opacity: .75; }
.plot .mark-name { fill: var(--ink); font-weight: 560;
  stroke: var(--paper); stroke-width: 5px; paint-order: stroke; }
.plot .line { fill: none; stroke: var(--tone); stroke-width: 2; stroke-linejoin: round; }
.plot .line.dashed { stroke-dasharray: 6 4; }
.plot .under { fill: var(--tone); opacity: .12; }
.plot .band { fill: var(--tone); }
.plot .trouble { fill: var(--paper); stroke: var(--danger); stroke-width: 1; }
.plot .hatch { stroke: var(--danger); stroke-width: 3; }
.plot .band-name { fill: var(--on-band); font-weight: 560; }
.plot .tone-c2 .band-name, .plot .tone-c5 .band-name { fill: var(--on-light-band); }
.plot .plate { fill: var(--paper); }
.plot .band-name.trouble-name { fill: var(--danger); }
.plot .name { fill: var(--tone); font-weight: 560; }
.tone-c1 { --tone: var(--c1); } .tone-c2 { --tone: var(--c2); }
.tone-c3 { --tone: var(--c3); } .tone-c4 { --tone: var(--c4); }
.tone-c5 { --tone: var(--c5); } .tone-c6 { --tone: var(--c6); }
.tone-c7 { --tone: var(--c7); } .tone-c8 { --tone: var(--c8); }
.tone-danger { --tone: var(--danger); } .tone-quiet { --tone: var(--quiet); }
@media (max-width: 36rem) {
  body { padding: 1.5rem 1rem 3rem; font-size: 15px; } h1 { font-size: 1.6rem; }
  .checks li { grid-template-columns: 1.5rem 1fr; } .checks .found { grid-column: 2;
    text-align: left; }
  table { min-width: 0; }
  .bars { grid-template-columns: 1fr; row-gap: .1rem; font-size: .9rem; }
  .bars .row-name { text-align: left; margin-top: .35rem; }
  td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 8rem; }
}
@media print { body { max-width: none; padding: 0; } section { break-inside: avoid; } }
"""
