-- Fills two tables of 200 000 rows, indexes one and joins them.
CREATE TABLE item(id INTEGER PRIMARY KEY, kind INT, label TEXT);
CREATE TABLE use_of(id INTEGER PRIMARY KEY, item INT);
INSERT INTO item
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
  SELECT i, (i * 7919) % 100003, 'row' || i FROM n;
INSERT INTO use_of
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
  SELECT i, (i * 104729) % 200000 FROM n;
CREATE INDEX item_kind ON item(kind);
SELECT count(*), sum(item.kind)
  FROM use_of JOIN item ON item.id = use_of.item
  WHERE item.kind % 3 = 0;
