"""The figures of docs/simulator.md, with the settings that the page names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lynx_ascend.simulation.acceptance import published_by_context
from lynx_ascend.simulation.hardware import Hardware
from lynx_ascend.simulation.load import Site, serve
from lynx_ascend.simulation.methods import methods
from lynx_ascend.simulation.models import MODELS
from lynx_ascend.simulation.paper import compare
from lynx_ascend.simulation.report import draw_load, draw_maps, draw_paper
from lynx_ascend.simulation.rules import draw_map
from lynx_ascend.simulation.simulate import poisson

RATES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
METHODS = ("bf16", "int8", "int8, layer-wise", "int8, draft model", "cachegen", "lynx", "lynx, layer-wise")


def draw_all(folder: Path) -> list[Path]:
    """Writes the PNGs; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"simulator-{name}.png" for name in ("paper", "map", "load")]
    acceptance, hardware = published_by_context(), Hardware()
    draw_paper(compare(), paths[0])
    draw_maps([draw_map(model, hardware, acceptance) for model in MODELS.values()], paths[1])
    model = MODELS["llama-8b"]
    site = Site(model, hardware, 10e9, acceptance)
    known = methods(model.kv_heads, model.head_dim)
    rows = []
    for rate in RATES:
        arrivals = poisson(rate, 200, [32768], 128, seed=0)
        in_order = serve(replace(site, in_order=True), [known["lynx"]], arrivals, seed=0)
        rows.append(serve(site, [known[name] for name in METHODS], arrivals, seed=0))
        rows[-1].append(replace(in_order[0], method="lynx, requests in order"))
    draw_load(RATES, rows, f"{model.name}, 32K tokens, 10 Gbit/s", paths[2])
    return paths
