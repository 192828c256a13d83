"""How reports look: one style sheet, light or dark as the reader's system is, on paper, too."""

from __future__ import annotations

from typing import Final

CSS: Final = """
:root{--paper:#fbfbfa;--card:#fff;--ink:#1b1f24;--soft:#5c6670;--faint:#8b949e;--rule:#e6e8ea;--grid:#eceef0;
--good:#1a7f4b;--bad:#c0362c;--warn:#a76a00;--accent:#3159c9;
--c1:#3159c9;--c2:#d9742b;--c3:#2a9a76;--c4:#a44fb5;--c5:#c9a227;--c6:#5b7083}
@media (prefers-color-scheme:dark){:root{--paper:#111418;--card:#181c21;--ink:#e7eaee;--soft:#a3adb8;--faint:#737e8a;
--rule:#2a3037;--grid:#242a31;--good:#4cc38a;--bad:#ff7a70;--warn:#e5b04c;--accent:#82a2ff;
--c1:#82a2ff;--c2:#f0995a;--c3:#55c9a2;--c4:#d08be0;--c5:#e0c155;--c6:#98abbd}}
*{box-sizing:border-box}
html{font-size:16px;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);line-height:1.55;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
-webkit-font-smoothing:antialiased;font-feature-settings:"kern","liga"}
header,main,footer{max-width:1060px;margin:0 auto;padding:0 32px}
header{padding-top:56px}
.brand{margin:0 0 20px;font-size:.8rem;font-weight:600;letter-spacing:.14em;text-transform:uppercase;
color:var(--accent)}
h1{margin:0;font-size:2.1rem;line-height:1.2;font-weight:650;letter-spacing:-.018em}
.subtitle{margin:.5rem 0 0;color:var(--soft);font-size:1.05rem;max-width:46em}
.verdict{display:inline-block;margin:1.4rem 0 0;padding:.5rem .95rem;border-radius:8px;font-weight:550;
border:1px solid var(--rule);background:var(--card)}
.verdict.good{color:var(--good)}.verdict.bad{color:var(--bad)}.verdict.warn{color:var(--warn)}
nav{display:flex;flex-wrap:wrap;gap:.35rem 1.5rem;margin-top:2rem;padding:.85rem 0;border-top:1px solid var(--rule);
border-bottom:1px solid var(--rule);font-size:.9rem}
nav a{color:var(--soft);text-decoration:none}nav a:hover{color:var(--accent)}
section{padding-top:52px}
h2{margin:0;font-size:1.35rem;font-weight:620;letter-spacing:-.01em}
.intro{margin:.45rem 0 0;color:var(--soft);max-width:46em}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(172px,1fr));gap:14px;margin-top:24px}
.tile{display:flex;flex-direction:column;padding:18px 20px 16px;background:var(--card);border:1px solid var(--rule);
border-radius:12px}
.tile .label{font-size:.84rem;color:var(--soft)}
.tile .value{margin-top:5px;font-size:1.7rem;line-height:1.2;font-weight:620;letter-spacing:-.015em;
font-variant-numeric:tabular-nums}
.tile .hint{margin-top:5px;font-size:.8rem;line-height:1.4;color:var(--faint)}
.tile.good .value{color:var(--good)}.tile.bad .value{color:var(--bad)}.tile.warn .value{color:var(--warn)}
figure{margin:24px 0 0;padding:20px 22px 14px;background:var(--card);border:1px solid var(--rule);border-radius:12px}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:.3rem 1.6rem;margin-bottom:12px;
font-size:.92rem}
figcaption b{font-weight:600}
.key{display:inline-flex;align-items:center;gap:.45em;margin-left:1.15em;color:var(--soft);font-size:.84rem}
.key:first-child{margin-left:0}
.key i{width:14px;height:3px;border-radius:2px;background:currentColor}
.under{margin:8px 0 4px;font-size:.82rem;color:var(--faint)}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{fill:var(--soft);font-size:12px;font-family:inherit;font-variant-numeric:tabular-nums}
svg .axis{fill:var(--faint);font-size:12px}
.grid{stroke:var(--grid);fill:none}.floor,.tick{stroke:var(--faint);stroke-opacity:.6;fill:none}
.mark{stroke:var(--faint);stroke-dasharray:4 4;fill:none}
.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.area{fill:currentColor;fill-opacity:.09}
.bar{fill:currentColor;fill-opacity:.88}.bar:hover{fill-opacity:1}
.dot{fill:var(--card);stroke:currentColor;stroke-width:2}.dot:hover{fill:currentColor}
.hover{fill:transparent}.hover:hover{fill:currentColor}
.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}
.table{margin-top:24px;overflow-x:auto;background:var(--card);border:1px solid var(--rule);border-radius:12px}
table{width:100%;border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{padding:16px 22px 4px;text-align:left;font-weight:600;font-size:.92rem}
th,td{padding:9px 14px;text-align:left;white-space:nowrap;vertical-align:top}
th:first-child,td:first-child{padding-left:22px}th:last-child,td:last-child{padding-right:22px}
th{font-weight:500;font-size:.82rem;color:var(--soft);border-bottom:1px solid var(--rule)}
tr+tr td{border-top:1px solid var(--grid)}
.n{text-align:right}.none{color:var(--faint)}
.note{margin:18px 0 0;max-width:52em;font-size:.9rem;color:var(--soft)}
.note.good{color:var(--good)}.note.bad{color:var(--bad)}.note.warn{color:var(--warn)}
footer{padding-top:56px;padding-bottom:56px;font-size:.8rem;color:var(--faint)}
@media (max-width:640px){header,main,footer{padding-left:18px;padding-right:18px}header{padding-top:32px}
h1{font-size:1.6rem}figure{padding:14px 10px 10px}}
@media print{:root{--paper:#fff}section{break-inside:avoid}nav{display:none}}
"""
