-- Two spirals that wind around each other: no straight line tells which of them a point is on.
-- Everything follows from a hash of the row's number, so the rows are the same in each run.
CREATE VIEW points AS
SELECT
    CAST(radius * cos(angle) AS REAL) AS x,
    CAST(radius * sin(angle) AS REAL) AS y,
    CAST(spiral AS INT UNSIGNED) AS label
FROM (
    SELECT spiral, radius, 7 * radius + pi() * spiral + blur AS angle
    FROM (
        -- Three parts of the hash: its first 16 bits, the next 16, and one behind them.
        SELECT
            0.1 + (row_hash >> 48) / 65536.0 AS radius,
            3.2 * ((row_hash << 16 >> 48) / 65536.0 - 0.5) AS blur,
            row_hash << 32 >> 63 AS spiral
        FROM map_batches(range(110000, override_num_blocks => 11), 'row_hash')
    )
);

-- The last rows are held out. They are like the others, since only the hash says where a point is.
CREATE VIEW held_out AS
SELECT * FROM train_test_split(points, 'test', 10000);

-- What is served, in another order in each epoch.
SELECT *
FROM local_shuffle(train_test_split(points, 'train', 10000), 4096, seed => 7, reseed_after_execution => true);
