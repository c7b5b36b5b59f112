"""Files as people write them: read as they stand, or refused; never shifted, cut or merged."""

from __future__ import annotations

import contextlib
import csv
import gzip
import random
import string
import tempfile
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest
from fuzzing import CASES, damaged
from hypothesis import given
from hypothesis import strategies as st

from flower_fedcon.errors import ConfigError
from flower_fedcon.tables import DataError, Schema, read_table
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.raw_cells import read_cells
from flower_fedcon.tables.read import read_clients

LINEAR = Schema("y", {"x": "numeric", "c": "categorical"})


def write(folder, name, text):
    path = Path(folder) / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# --- dialects of CSV -----------------------------------------------------------------------------

CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NAMES = st.lists(
    st.text(string.ascii_letters + string.digits + ' _;,."', min_size=1, max_size=8)
    .map(str.strip)
    .filter(bool),
    min_size=2,
    max_size=5,
    unique=True,
)


@st.composite
def files(draw):
    """A table's names and rows, and its bytes in some dialect."""
    names = draw(NAMES)
    mark = draw(st.sampled_from(",;\t"))
    row = st.lists(CELLS, min_size=len(names), max_size=len(names))
    rows = draw(st.lists(row, min_size=1, max_size=6))
    suffix = draw(st.sampled_from([".csv", ".tsv", ".CSV", ".csv.gz"]))
    options = {
        "delimiter": "\t" if suffix == ".tsv" else mark,
        "quoting": draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
        "lineterminator": draw(st.sampled_from(["\n", "\r\n", "\r"])),
    }
    if mark != "," or any("\r" in cell or "\n" in cell for row in rows for cell in row):
        options["quoting"] = csv.QUOTE_ALL  # a writer quotes its own line ends and marks alone
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, **options)
        for line in [names, *rows]:
            writer.writerow(line)
            file.write(draw(st.sampled_from(["", "", options["lineterminator"]])))  # a blank line
        file.seek(0)
        content = file.read().encode(draw(st.sampled_from(["utf-8", "utf-8-sig"])))
    return names, rows, suffix, content, options


def saved(folder, suffix, content):
    return write(folder, f"t{suffix}", gzip.compress(content) if suffix[-2:] == "gz" else content)


@pytest.mark.fuzz
@given(files())
def test_every_dialect_reads_back(case):
    """Cells are what was written, up to blanks before them; quotes, line ends and all."""
    names, rows, suffix, content, _ = case
    with tempfile.TemporaryDirectory() as folder:
        found = read_cells(saved(folder, suffix, content), names)
    assert list(found.names) == list(found.columns) == names
    read = list(zip(*(found.columns[name] for name in names), strict=True))
    assert [[c.lstrip(" ") for c in row] for row in rows] == [[c.lstrip(" ") for c in row]
                                                              for row in read]  # fmt: skip
    assert found.rows.tolist() == list(range(1, len(rows) + 1))


@pytest.mark.fuzz
@given(files(), st.data())
def test_a_row_that_is_longer_or_shorter_than_the_header_is_refused(case, data):
    """Wherever it is, and whatever is in it: with file, row and both counts."""
    names, rows, suffix, _, options = case
    place = data.draw(st.integers(0, len(rows) - 1))
    row = list(rows[place])
    if len(row) == 2 or data.draw(st.booleans()):
        row.insert(data.draw(st.integers(0, len(row))), data.draw(CELLS))
    else:
        row.pop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{suffix}"
        opener = gzip.open if suffix[-2:] == "gz" else open
        with opener(path, "wt", encoding="utf-8", newline="") as file:
            options["quoting"] = csv.QUOTE_ALL
            csv.writer(file, **options).writerows([names, *rows[:place], row, *rows[place + 1 :]])
        with pytest.raises(DataError) as told:
            read_cells(path, names)
    words = f"row {place + 1} ", f"found {len(row)} cells", f"expected {len(names)} as in the head"
    assert all(word in str(told.value) for word in (str(path), *words))


REFUSED = [  # a file of y, x and c; and the words
    ('"y","x","c"\n"1",1,2,"a"\n"2",2,3,"b"\n', "row 1 .*found 4 cells .and 1 more"),  # of R
    ("y,x,c\n1,5,2,a\n", "found 4 cells, expected 3 .*is there a decimal comma"),
    ("y,x,c\n1,2,a\n2,3,b,\n", "row 2 .line 3.: found 4 cells, expected 3"),
    ("y,x,c\n1,2,a\n2,3\n", "row 2 .*found 2 cells, expected 3"),
    ('y,x,c\n1,"2,5",a\n', "column 'x': found '2,5', .*write decimals with a point"),
    ("y;x;c\n1;2;a\n2;1,234;a\n",
     "row 2, column 'x': found '1,234', expected 1234, or other numbers that show the meaning"),
    ("y;x;c\n1;1.234;a\n", "column 'x': found '1.234', expected 1234"),
    ("y\tx\tc\n1\t1,234\ta\n", "column 'x': found '1,234', expected 1234"),
    ("y;x;c\n1;1.234;a\n2;2,5;a\n", "found '1.234', expected a decimal comma as in"),
    ("y;x;c\n1;1.234,5;a\n", "column 'x': found '1.234,5', expected a finite"),
    ("y;x;c\n1;2;a;\n", "found 4 cells, expected 3 .*text with a semicol"),
    ("y,x,c,x\n1,2,a,3\n", r"column 'x': found 2 columns of this name .numbers 2, 4 of"),
    ("y,x,c, x \n1,2,a,3\n", "column 'x': found 2 columns of this name"),
    ("y,x,c,y\n1,2,a,3\n", "column 'y': found 2 columns of this name"),
    ("y,x,c\n1,2\x003,a\n", "line 2: found a NUL character, expected text"),
    ("y,x,c\n1,2,a\x00\x00\n", "line 2: found a NUL character"),
    ("y,x,c\n1,2,a\n".encode("utf-16"), "it cannot be read: it is not UTF-8 .the byte 0xff"),
    ("y,x,c\n1,2,Zürich\n".encode("latin-1"), "is not UTF-8 .the byte 0xfc"),
    ('y,x,c\n1,2,"a\n2,3,b\n', "it cannot be read: line 3: .*close each quote"),
    ("y,x,c\n1,1_000,a\n", "column 'x': found '1_000', expected a finite num"),
    ("y,x,c\n1,١٢,a\n", "column 'x': found '١٢', expected a finite number"),
    ("y,x,c\n1,1e999,a\n", "column 'x': found '1e999', expected a finite number"),
    ("y,x,c\n1,inf,a\n", "column 'x': found 'inf', expected a finite number"),
    ("y,x,c\n1,<60,a\n1,2,a\n", "found '<60', expected .*: a value below or above a limit is not"),
    ("y,x,c\n1,26.4%,a\n1,2,a\n", "found '26.4%', expected .*: write the number without \"%\""),
    ("y,x,c\n1,true,a\n1,2,a\n", "column 'x': found 'true', expected a finite num"),
    ("y,x,c\n1,2,a\n2,1e160,a\n",
     r"row 2, column 'x': found '1e160', expected a number from -1e\+45 to 1e\+45"),
    *[(f"{first}\ny,x,c\n1,2,a\n", f"line 1 is not the header: found '{first}', expected")
      for first in ("# made by R", "sep=,", "Patients of ward 7", "#a,b")],
]  # fmt: skip


@pytest.mark.parametrize(("content", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_would_shift_cut_or_alter_cells_is_refused(content, words, tmp_path):
    path = write(tmp_path, "t.csv", content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what a library warns of is not for users
        with pytest.raises(DataError, match=words) as told:
            read_table(path, LINEAR)
    assert str(told.value).startswith(f"{path}: ")
    with pytest.raises(DataError, match=words):
        read_clients(path, LINEAR, "c")


@pytest.mark.fuzz
@given(
    st.lists(st.decimals(-9999, 9999, places=2), min_size=1, max_size=5),
    st.lists(st.decimals(-9999, 9999, places=3), max_size=5),
    st.sampled_from(";\t"),
    st.sampled_from(".,"),
)
def test_decimal_commas_are_read_where_a_file_shows_that_they_are(few, more, between, mark):
    """A number of two decimals shows it; whatever else is in the file is read so, too."""
    numbers = [str(number).replace(".", mark) for number in [*more, *few]]
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"y{between}x{between}c", *(f"0{between}{n}{between}1{mark}0" for n in numbers)]
        path = write(folder, "t.csv", "\n".join(lines))
        table = read_table(path, LINEAR)
        assert [*table.numeric[:, 0]] == [*map(float, [*more, *few])]
        assert set(table.categories[:, 0]) == {"1"}
        said = f"numbers are read with a decimal comma, such as {numbers[0]!r} in column 'x'"
        assert (said in table.notes()) == (mark == ",")
        three = [*map(float, more)]
        if not any("," in text for text in numbers) or not three:
            return
        path = write(folder, "t.csv", "\n".join(lines[: len(more) + 1]))
        with contextlib.suppress(DataError):  # thousands, or not
            assert [*read_table(path, LINEAR).numeric[:, 0]] == three


def test_marks_of_missing_values_are_as_the_schema_writes_them(tmp_path):
    schema = Schema("y", {"x": {"type": "numeric", "missing": ["-99,9"]}, "c": "categorical"})
    path = write(tmp_path, "t.csv", 'y;x;c\n1,5;-99,9;"a;b"\n2;0,125;a,b\n')
    table = read_table(path, schema)
    assert table.targets.tolist() == [1.5, 2.0]
    np.testing.assert_array_equal(table.numeric, [[np.nan], [0.125]])
    assert table.categories.tolist() == [["a;b"], ["a,b"]]


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_name_in_another_form_of_unicode_is_not_offered_as_another_name(forms, tmp_path):
    asked, written = (unicodedata.normalize(form, "\u00c4lter") for form in forms)
    path = write(tmp_path, "t.csv", f"y,{written}\n1,2\n2,3\n")
    with pytest.raises(DataError, match="looks the same is in another form of Unicode") as error:
        read_table(path, Schema("y", {asked: "numeric"}))
    assert "did you mean" not in str(error.value)


def test_columns_that_nobody_asks_for_may_be_there_twice(tmp_path):
    path = write(tmp_path, "t.csv", "y,x,note,c,note\n1,2,,a,\n2,3,,b,\n")
    assert read_table(path, LINEAR).numeric.tolist() == [[2.0], [3.0]]


def test_parquet_and_npz_go_by_the_rules_of_csv(tmp_path):
    """A name twice, blanks around it, an index that was saved, missing values, booleans."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = [12345678901234567, 12345678901234568, None]
    plain = {" y": [1.0, 2.0, 3.0], "x ": [True, False, None], "c": ids}
    pq.write_table(pa.table(plain), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", LINEAR)
    assert table.categories[:, 0].tolist() == ["12345678901234567", "12345678901234568", ""]
    np.testing.assert_array_equal(table.numeric[:, 0], [1.0, 0.0, np.nan])
    same = write(tmp_path, "t.csv", f"y,x,c\n1,True,{ids[0]}\n2,False,{ids[1]}\n3,,\n")
    assert read_table(same, LINEAR).resume_key == table.resume_key
    columns = [pa.array(column) for column in (*plain.values(), [1.0, 2.0, 3.0])]
    pq.write_table(pa.table(columns, names=["y", "x", "c", "x "]), tmp_path / "twice.parquet")
    with pytest.raises(DataError, match="column 'x': found 2 columns of this name"):
        read_table(tmp_path / "twice.parquet", LINEAR)
    lossy = pa.table({"y": [1.0], "x": [1.0], "c": [float(ids[0])]})
    pq.write_table(lossy, tmp_path / "lossy.parquet")
    with pytest.raises(DataError, match="a float has lost digits"):
        read_table(tmp_path / "lossy.parquet", LINEAR)
    frame = lossy.to_pandas().assign(c="a").set_index("y")
    frame.to_parquet(tmp_path / "indexed.parquet")
    assert read_table(tmp_path / "indexed.parquet", LINEAR).targets.tolist() == [1.0]
    frame.reset_index().astype({"c": "category"}).to_parquet(tmp_path / "codes.parquet")
    assert read_table(tmp_path / "codes.parquet", LINEAR).categories.tolist() == [["a"]]
    np.savez(tmp_path / "t.npz", **{"y": np.ones(2), "x": np.ones(2), "x ": np.ones(2)})
    with pytest.raises(DataError, match="column 'x': found 2 columns of this name"):
        read_table(tmp_path / "t.npz", LINEAR)


@pytest.mark.fuzz
def test_damaged_tables_are_read_or_refused_in_a_sentence(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"y": np.arange(9.0), "x": np.arange(9), "c": list("abcabcabc")})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_csv(tmp_path / "t.csv.gz", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    rng = random.Random(0)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for _ in range(CASES // 5):
            path.write_bytes(damaged(whole, rng))
            with contextlib.suppress(DataError):
                read_table(path, LINEAR)
                continue
            with pytest.raises(DataError) as told:
                read_table(path, LINEAR)
            assert str(told.value).startswith(f"{path}: ")
            assert "\n" not in str(told.value)


# --- categories and clients are text -------------------------------------------------------------

CODES = st.one_of(
    st.from_regex(r"-?0{0,2}[0-9]{1,3}(\.0{1,2})?", fullmatch=True),
    st.from_regex(r"[0-9][eE][0-9]", fullmatch=True),
    st.integers(10**16, 10**16 + 9).map(str),
    st.text("aA0 .", min_size=1, max_size=3).map(str.strip).filter(bool),
    st.sampled_from(["True", "TRUE", "true", "1.0", "1", "None", "inf", "Infinity", "NAN", "<NA>"]),
)


def of_one(code):
    """What two codes have in common if they are one: no more than 7 and 7.0."""
    digits = code.removesuffix(".0")
    whole = digits.removeprefix("-").isdigit() and str(int(digits)) == digits
    return digits if whole and code != "-0.0" else code


@pytest.mark.fuzz
@given(st.lists(CODES, min_size=2, max_size=12), st.booleans())
def test_codes_stay_apart(codes, text):
    """In CSV and Parquet, as categories and as clients."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        if text:
            lines = "".join(f"1,1,{code}\n" for code in codes)
            path = write(folder, "t.csv", f"y,x,c\n{lines}")
        else:
            path = Path(folder) / "t.parquet"
            ones = [1.0] * len(codes)
            pq.write_table(pa.table({"y": ones, "x": ones, "c": codes}), path)
        marks = read_table(path, LINEAR).categories[:, 0].tolist()
        assert len(read_clients(path, LINEAR, "c")) == len(set(marks))
    for mark, code in zip(marks, codes, strict=True):
        same = [other == mark for other in marks]
        assert same == [of_one(other) == of_one(code) for other in codes]


def test_zip_codes_of_two_sites_stay_apart(tmp_path):
    """01067 is Dresden; a spreadsheet would have made 1067 of it."""
    write(tmp_path, "a.csv", "y,x,c\n1,1,01067\n2,2,1067\n3,4,10115\n")
    write(tmp_path, "b.csv", "y,x,c\n1,1,1E2\n2,2,100\n3,4,1.0\n")
    schema = {"target": "y", "features": {"x": "numeric", "c": "categorical"}}
    problem = tables(data=str(tmp_path / "*.csv"), schema=schema)
    known = ("1", "100", "1E2", "01067", "1067", "10115")
    assert problem.preparation.categories == {"c": known}


def test_clients_of_one_file(tmp_path):
    """Text, blanks taken off; what is easily confused is said, and a row of nobody refused."""
    rows = ["Berlin", "berlin", "Berlin ", "1", "01", "1.0"]
    head, body = "y,x,c,site\n", [f"{i},{i * i},a,{site}\n" for i, site in enumerate(rows)]
    path = write(tmp_path, "all.csv", head + "".join(body))
    found = read_clients(path, LINEAR, "site")
    assert {name: len(table.targets) for name, table in found.items()} == {
        "Berlin": 2, "berlin": 1, "1": 2, "01": 1,
    }  # fmt: skip
    said = {
        ("Berlin", "Berlin "): "one",
        ("1", "1.0"): "one",
        ("Berlin", "berlin"): 2,
        ("1", "01"): 2,
    }
    for (one, other), number in said.items():
        words = f"column 'site': {one!r} and {other!r} are taken as {number} client"
        assert any(note.startswith(words) for note in found["1"].notes())
    assert read_table(path, LINEAR, column="site", client="Berlin ").targets.tolist() == [0, 2]
    with pytest.raises(DataError, match="no row has 'Berlim' in the column 'site': did you mean"):
        read_table(path, LINEAR, column="site", client="Berlim")
    write(tmp_path, "all.csv", head + "".join([*body, "1,2,a,\n", "1,2,a,NA\n"]))
    words = r"row 7, column 'site': found '' \(and in 1 more row\), expected a client in every row"
    with pytest.raises(ConfigError, match=words):
        tables(data=str(path), schema={"target": "y", "features": {"x": "numeric"}},
               client_column="site")  # fmt: skip
    write(tmp_path, "all.csv", head + "".join([*body, "1,word,a,1\n"]))
    with pytest.raises(ConfigError, match=r"all\.csv: row 7, column 'x': found 'word'"):
        read_clients(path, LINEAR, "site")


# --- outcomes ------------------------------------------------------------------------------------


def outcomes(folder, cells, **schema):
    text = "y,x\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells))
    known = Schema.load({"target": "y", "features": {"x": "numeric"}, **schema})
    return read_table(write(folder, "t.csv", text), known).outcome.tolist()


SPELLINGS = ["true", "TRUE", "True", "t", "T", "yes", "Yes", "y", "Y", "1", "1.0"]
OPPOSITES = ["false", "FALSE", "False", "f", "F", "no", "No", "n", "N", "0", "0.0"]


@pytest.mark.parametrize(("yes", "no"), [(True, False), (1, 0), ("yes", "no"), ("T", "F")])
def test_booleans_in_any_spelling(yes, no, tmp_path):
    cells, found = SPELLINGS + OPPOSITES, [1.0] * len(SPELLINGS) + [-1.0] * len(OPPOSITES)
    assert outcomes(tmp_path, cells, positive=[yes], negative=[no]) == found
    assert outcomes(tmp_path, cells, positive=[yes]) == found
    said = Schema("y", {"x": "numeric"}, positive=[yes], negative=[no])
    note = read_table(tmp_path / "t.csv", said).notes()[0]
    assert note.startswith("column 'y': read as true or false, like the schema's values: ")
    assert outcomes(tmp_path, cells, classes=[no, yes]) == [max(y, 0) for y in found]
    text = "t,e,x\n" + "".join(f"{i},{cell},0\n" for i, cell in enumerate(cells))
    schema = Schema("t", {"x": "numeric"}, event="e", event_values=(no, yes))
    path = write(tmp_path, "cox.csv", text)
    assert read_table(path, schema).outcome.tolist() == [max(y, 0) for y in found]


def test_all_other_values_count_as_0_and_that_is_said(tmp_path):
    assert outcomes(tmp_path, "4013", positive=[4]) == [1, -1, -1, -1]
    notes = read_table(tmp_path / "t.csv", Schema("y", {"x": "numeric"}, positive=[4])).notes()
    assert notes == [
        "column 'y': '0', '1', '3' count as 0, since the schema names no negative value"
    ]


def test_events_of_codes_1_and_2(tmp_path):
    path = write(tmp_path, "t.csv", "t,e,x\n5,1,0\n6,2,1\n")
    schema = Schema("t", {"x": "numeric"}, event="e", event_values=[1, 2])
    assert read_table(path, schema).targets.tolist() == [[5.0, 0.0], [6.0, 1.0]]


POISSON = {"loss": "poisson"}
RANGE = "from 0 to 1e300: correct the cell, or remove"
MISFITS = [  # a schema beside target y and feature x; cells of the first column, and of the second
    ({"positive": ["case"]}, "y", ["case", "Case"], "found 'Case', expected one of case: corr"),
    ({"positive": [7]}, "y", ["7", "07"], "found '07', expected one of 7"),
    ({"positive": ["yes"]}, "y", ["yes", "unknown"], "found 'unknown', expected one of yes"),
    ({"positive": ["a"], "negative": ["b"]}, "y", "ac", "found 'c', expected one of a, b"),
    ({"positive": [1], "negative": [0]}, "y", "19", "found '9', expected one of 1, 0 .or an"),
    ({"positive": ["dead"]}, "y", ["dead", "dead\u200b"], "found 'dead"),  # unseen
    ({"classes": ["a", "b"]}, "y", "aB", "found 'B', expected one of a, b: corr"),
    ({"loss": "gamma"}, "y", "10", "found '0', expected an amount above 0"),
    (POISSON, "y", ["1", "-5"], f"found '-5', expected a count {RANGE}"),
    ({"event": "e"}, "y", ["1", "-5"], f"found '-5', expected a time {RANGE}"),
    ({"event": "e"}, "e", "12", r"found '2', expected one of 0, 1 .*event_values = \[1, 2\]"),
    ({"weight": "w"}, "w", ["1", "-5"], f"found '-5', expected a weight {RANGE}"),
    ({"cluster": "ward"}, "ward", ["a", ""], "found '', expected a value in every row"),
    (POISSON | {"exposure": "e"}, "e", "10", "found '0', expected an exposure above 0"),
    (POISSON | {"exposure": "e"}, "e", ["1", "-1"], "found '-1', expected an exposure from 0"),
    (POISSON | {"exposure": "e"}, "e", ["1", ""], "found '', expected a number in every row"),
    (POISSON | {"offset": "o"}, "o", ["1", "NA"], "found 'NA', expected a number in every row"),
    (POISSON | {"offset": "o"}, "o", ["1", "high"], "found 'high', expected a finite number"),
    (POISSON | {"offset": "o"}, "o", ["1", "1e7"], ".*added to the linear predictor"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "column", "cells", "words"), MISFITS)
def test_cells_that_do_not_fit_the_schema_are_refused_by_name(
    schema, column, cells, words, tmp_path
):
    names = dict.fromkeys([column, "y", "e", "x"])
    others = [",".join("1" if name != "x" else str(i) for name in [*names][1:]) for i in range(2)]
    rows = [f"{cell},{own}" for cell, own in zip(cells, others, strict=True)]
    path = write(tmp_path, "t.csv", "\n".join([",".join(names), *rows]))
    with pytest.raises(DataError, match=f"row 2, column '{column}': {words}") as told:
        read_table(path, Schema.load({"target": "y", "features": {"x": "numeric"}, **schema}))
    assert str(told.value).startswith(f"{path}: ")
