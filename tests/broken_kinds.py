#!/usr/bin/env python3
"""Compares the rejects of a run over generated data with the table of broken kinds.

    broken_kinds.py BROKEN_JSON REJECTS_JSONL CONTRACT

BROKEN_JSON is what `make_dataset.py --broken N --broken-kinds all` writes beside its data, REJECTS_JSONL comes from
`packd run --seq-len 4096` over that data, CONTRACT is a column of broken_kinds.json (`llava-onevision-2`, or
`hf-chat-template` under a processor with a max_pixels of 1,003,520). Ends with status 1 where a kind got another
verdict, a kind is missing, or a good record was rejected for anything but its length.
"""

import json
import sys
from pathlib import Path


def faults(broken, rejects, table, contract):
    rejects = {reject["line"]: reject for reject in rejects}
    for kind in sorted(table.keys() ^ {entry["kind"] for entry in broken}):
        yield f"{kind}: {'not in the data' if kind in table else 'not in the table'}"
    for entry in broken:
        reject = rejects.pop(entry["line"], None)
        found = reject["reason"] if reject else "accepted"
        expected = table.get(entry["kind"], {}).get(contract, found)
        where = f"{entry['kind']} on line {entry['line']}"
        if found != expected:
            yield f"{where}: {found}, expected {expected} ({reject['detail'] if reject else 'no reject'})"
        # Of a line that is no JSON object nobody knows the id.
        if reject and reject["id"] not in (None, entry["id"]):
            yield f"{where}: id {reject['id']}, expected {entry['id']}"
        if reject and reject["id"] is None and entry["id"] is not None \
                and found not in ("json-syntax", "not-an-object", "invalid-utf8"):
            yield f"{where}: no id, expected {entry['id']}"
    for line, reject in rejects.items():
        if reject["reason"] != "over-length":
            yield f"the good record on line {line} was rejected: {reject['reason']} ({reject['detail']})"


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    table = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    contract = sys.argv[3]
    if any(contract not in verdicts for verdicts in table.values()):
        sys.exit(f"broken_kinds.json has no column {contract}")
    broken = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    rejects = [json.loads(line) for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()]
    found = list(faults(broken, rejects, table, contract))
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{contract}: {len(broken)} records of {len(table)} broken kinds, {len(rejects)} rejects, {len(found)} faults")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
