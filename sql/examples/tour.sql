-- A tour: generate data, join it, run a batch function, shuffle, write and look at the plan. Made for a small --memory, so
-- that blocks spill.
SET blockyard.target_max_block_size = '4MiB';

CREATE TABLE lineitem AS SELECT * FROM tpch('lineitem', 0.1);
CREATE TABLE orders AS SELECT o_orderkey, o_orderpriority, o_totalprice FROM tpch('orders', 0.1);

CREATE VIEW priced AS
SELECT l_orderkey, l_shipmode, o_orderpriority, CAST(l_extendedprice AS DOUBLE) AS price, CAST(o_totalprice AS DOUBLE) AS total
FROM lineitem JOIN orders ON l_orderkey = o_orderkey;

EXPLAIN SELECT * FROM random_shuffle(map_batches(priced, 'l2_normalize', batch_size => 4096), seed => 42);

COPY (SELECT * FROM random_shuffle(map_batches(priced, 'l2_normalize', batch_size => 4096), seed => 42))
TO 'target/tour/' STORED AS PARQUET OPTIONS ('mode' 'overwrite');

SELECT l_shipmode, count(*) AS items, round(avg(price), 4) AS price, round(avg(total), 4) AS total
FROM read_parquet('target/tour') GROUP BY l_shipmode ORDER BY l_shipmode;
