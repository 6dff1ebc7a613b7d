"""The study as one run of the tracker: the final table, the verdict, the report as a file.

The report on disk is the result; this is a copy for those who look at W&B first, so nothing that
goes wrong here may fail a study.
"""

from __future__ import annotations

from pathlib import Path

from isoattn.ablate.engine import Engine, tracker_id
from isoattn.ablate.report import ReportPaths
from isoattn.ablate.summary import final_table, reference_table, summarise


def publish(engine: Engine, paths: ReportPaths) -> None:
    """Log a ``job_type=report`` run in the study's group, where the tracker is W&B."""
    if engine.tracker not in ("wandb", "wandb-offline"):
        return
    try:
        _publish(engine, paths)
    except Exception as error:  # whatever a tracker raises
        reason = (str(error) or type(error).__name__).splitlines()[0]
        engine.speaker.say(f"the report was not sent to W&B: {reason}", "yellow")


def _publish(engine: Engine, paths: ReportPaths) -> None:
    import wandb

    study = engine.study
    results = engine.results()
    summary = summarise(study, results)
    rows = final_table(summary)
    with wandb.init(
        project=engine.settings.project,
        group=engine.group,
        job_type="report",
        name=f"{engine.group}-report",
        id=tracker_id(engine.group, "report"),
        resume="allow",
        reinit="create_new",
        tags=[study.app, "report", study.preset],
        config={"study": study.as_dict(), "hash": study.hash},
        dir=str(engine.folder),
        mode="online" if engine.tracker == "wandb" else "offline",
        settings=wandb.Settings(silent=True, console="off", disable_git=True),
    ) as run:
        if rows:
            columns: list[str | int] = [*rows[0]]
            data = [[str(value) for value in row.values()] for row in rows]
            run.log({"results": wandb.Table(columns=columns, data=data)})
        if beside := reference_table(summary):
            columns = [*beside[0]]
            data = [[*row.values()] for row in beside]
            run.log({"references": wandb.Table(columns=columns, data=data)})
        run.summary["verdict"] = summary["verdict"]
        run.summary["cells"] = len(results.cells) + len(results.references)
        artifact = wandb.Artifact(f"{study.name}-{study.preset}-report", type="report")
        for path in (paths.html, paths.markdown, paths.csv, paths.json):
            artifact.add_file(str(path), name=Path(path).name)
        run.log_artifact(artifact)
