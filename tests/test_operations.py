"""docs/operations.md, the dashboard and the alerts speak of the options and metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import yaml

from lynx_ascend.serving.metrics import METRICS
from lynx_ascend.serving.options import LynxOptions

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
DASHBOARD = ROOT / "deploy" / "grafana" / "lynx.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"


def rows(first_column: str) -> list[list[str]]:
    """The cells of the table whose header begins with `first_column`."""
    table = re.search(rf"^\| {first_column} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert table is not None, f"no table of {first_column}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def metrics_of(expression: str) -> set[str]:
    """The metrics that a PromQL expression asks for, by their names in METRICS."""
    return {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"vllm:(\w+)", expression)}


def test_options_are_those_of_the_page() -> None:
    fields = {field.name: json.dumps(field.default) for field in msgspec.structs.fields(LynxOptions)}
    assert {row[0].strip("`"): row[1].strip("`") for row in rows("option")} == fields


def test_metrics_are_those_of_the_page() -> None:
    exported = [
        [
            f"`{metric.name}`",
            metric.kind,
            metric.where,
            "; ".join(f"{label}: {', '.join(values)}" for label, values in metric.labels.items()),
            metric.help,
        ]
        for metric in METRICS.values()
    ]
    assert rows("metric") == exported


def test_reasons_are_explained() -> None:
    for name in ("lynx_failed_transfers_total", "lynx_skips_total", "lynx_fallbacks_total"):
        text = re.search(rf"^- Reasons of `{name}`:(.*?)(?=^- |^$)", PAGE, re.MULTILINE | re.DOTALL)
        assert text is not None
        explained = set(re.findall(r"`([\w: -]+)`", text[1]))
        assert explained >= set(METRICS[name].labels["reason"])


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = {m for panel in dashboard["panels"] for t in panel["targets"] for m in metrics_of(t["expr"])}
    variables = {m for v in dashboard["templating"]["list"] for m in metrics_of(v.get("definition", ""))}
    assert asked == METRICS.keys() and variables <= METRICS.keys()
    ids = [panel["id"] for panel in dashboard["panels"]]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(ids)) == len(set(places)) == len(ids)
    histograms = {
        m for p in dashboard["panels"] for t in p["targets"] for m in re.findall(r"vllm:(\w+)_bucket", t["expr"])
    }
    assert histograms == {metric.name for metric in METRICS.values() if metric.kind == "histogram"}


def test_the_alerts_are_those_of_the_page() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]:
        assert metrics_of(rule["expr"]) and metrics_of(rule["expr"]) <= METRICS.keys()
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("warning", "critical")
    assert [rule["alert"] for rule in group["rules"]] == [row[0].strip("`") for row in rows("alert")]
