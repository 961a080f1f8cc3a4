"""Builds, counts, writes and reads back 60 000 JSON records."""

import collections
import json

kinds = collections.Counter()
records = []
for number in range(60_000):
    record = {"id": number, "kind": f"v{number % 977}", "parts": list(range(number % 7))}
    kinds[record["kind"]] += 1
    records.append(record)
text = json.dumps(records)
print(len(text), len(json.loads(text)), kinds.most_common(1))
