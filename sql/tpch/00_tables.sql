-- Generates the eight TPC-H tables at scale factor 0.1 into the block store.
create table region as select * from tpch('region', 0.1);
create table nation as select * from tpch('nation', 0.1);
create table supplier as select * from tpch('supplier', 0.1);
create table customer as select * from tpch('customer', 0.1);
create table part as select * from tpch('part', 0.1);
create table partsupp as select * from tpch('partsupp', 0.1);
create table orders as select * from tpch('orders', 0.1);
create table lineitem as select * from tpch('lineitem', 0.1);
