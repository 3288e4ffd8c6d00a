"""Fills in what the Rust tokenizers crate says about each case of cases.json.

    pip install tokenizers==0.23.3 && python expect.py

Cases and their texts are written by hand; ids, special, decoded, skipped and
size are overwritten. Run it after adding a case, and look at the difference.
"""
import copy
import json

from tokenizers import Tokenizer


def load(name):
    with open(name, encoding="utf-8") as f:
        return json.load(f)


bases = {}
cases = load("cases.json")
for case in cases:
    name = case["base"]
    spec = copy.deepcopy(bases.setdefault(name, load(name + ".json")))
    for key, value in case["with"].items():
        if key == "model":
            spec["model"].update(value)
        else:
            spec[key] = value
    crate = Tokenizer.from_str(json.dumps(spec))
    case["size"] = crate.get_vocab_size()
    for text in case["texts"]:
        text["ids"] = crate.encode(text["text"], add_special_tokens=False).ids
        text["special"] = crate.encode(text["text"], add_special_tokens=True).ids
        ids = text["special"]
        text["decoded"] = crate.decode(ids, skip_special_tokens=False) if ids else ""
        text["skipped"] = crate.decode(ids, skip_special_tokens=True) if ids else ""

with open("cases.json", "w", encoding="utf-8") as f:
    f.write("[\n")
    for i, case in enumerate(cases):
        texts = case.pop("texts")
        head = json.dumps(case, ensure_ascii=True)[:-1]
        f.write(head + ', "texts": [\n')
        f.write(",\n".join("  " + json.dumps(t, ensure_ascii=True) for t in texts))
        f.write("\n]}" + ("," if i + 1 < len(cases) else "") + "\n")
    f.write("]\n")
