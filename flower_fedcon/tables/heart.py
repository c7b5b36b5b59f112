"""Heart disease at four hospitals: real, heterogeneous tables with many missing values."""

from __future__ import annotations

from importlib.resources import files

from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.stated import stated
from flower_fedcon.tables.builders import tables

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@stated
def heart(
    *,
    l1: float = 0.02,
    penalty: str = "l1",
    weighting: str = "examples",
    min_rows: int = 1,
) -> FederatedProblem:
    """Return l1 logistic regression of heart disease on 13 attributes, each hospital a client.

    The data are of 920 patients. Each hospital holds out a quarter ("test_auc" and more in the
    history). Cholesterol was not measured in Switzerland, and `slope`, `ca` and `thal` are missing
    for most patients outside Cleveland; see `flower_fedcon.tables.preparation`. Needs the extra
    `tables`.

    Parameters
    ----------
    l1, penalty, weighting, min_rows : see `flower_fedcon.problems.tables`

    Source: Janosi, Steinbrunn, Pfisterer and Detrano, "Heart Disease", UCI Machine Learning
    Repository, 1988, https://doi.org/10.24432/C52P4X; CC BY 4.0.

    >>> problem = heart()
    >>> problem.names, len(problem.preparation.names)
    (('cleveland', 'hungarian', 'switzerland', 'va'), 18)
    """
    folder = files("flower_fedcon.tables") / "data" / "heart"
    return tables(
        data=[str(folder / f"{name}.csv") for name in HOSPITALS],
        schema=str(folder / "schema.toml"),
        l1=l1,
        penalty=penalty,
        weighting=weighting,
        min_rows=min_rows,
    )
