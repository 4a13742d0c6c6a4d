"""Grafana's dashboards, written in Python: `python -m deploy.grafana` writes the JSON that Grafana reads."""
