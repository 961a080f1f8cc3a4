-- How many of this machine's files look like copies of another: reads the list,
-- builds an index over names and sizes, and looks every file up in it.
CREATE TABLE file(folder TEXT, name TEXT, bytes INTEGER);
.mode tabs
.import files.tsv file
CREATE INDEX file_by_name ON file(name, bytes);
SELECT printf('%d of %d files have the name and size of another', sum(twins > 1), count(*))
  FROM (SELECT (SELECT count(*) FROM file AS b WHERE b.name = a.name AND b.bytes = a.bytes)
        AS twins FROM file AS a);
SELECT printf('%s holds the most: %.1f MB in %d files', folder, sum(bytes) / 1e6, count(*))
  FROM file GROUP BY folder ORDER BY sum(bytes) DESC LIMIT 1;
