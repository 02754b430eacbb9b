use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use blockyard::prelude::*;
use blockyard::{TestSize, TrainTestSplit};
use datafusion::arrow::array::RecordBatch;

use crate::fixtures::{context, ints};

async fn ids(dataset: &Dataset) -> Vec<i64> {
    ints(&dataset.take_all().await.unwrap(), "id")
}

async fn sizes(parts: &[Dataset]) -> Vec<usize> {
    let mut sizes = Vec::new();
    for part in parts {
        sizes.push(part.count().await.unwrap());
    }
    sizes
}

/// All rows of the parts, one after the other.
async fn all(parts: &[Dataset]) -> Vec<i64> {
    let mut rows = Vec::new();
    for part in parts {
        rows.extend(ids(part).await);
    }
    rows
}

/// A dataset whose number of rows is not known before it runs, and how many rows it has made.
fn unknown(rows: usize) -> (Dataset, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&made);
    let function = move |batch: RecordBatch| {
        seen.fetch_add(batch.num_rows(), SeqCst);
        Ok(batch)
    };
    (context().range_in_blocks(rows as u64, 7).unwrap().map_batches(function).unwrap(), made)
}

#[tokio::test]
async fn parts_have_each_row_once_and_differ_by_one_at_most() {
    for rows in [0, 1, 5, 97, 1000] {
        let (made, _) = unknown(rows);
        for dataset in [context().range_in_blocks(rows as u64, 3).unwrap(), made.materialize().await.unwrap()] {
            for n in [1, 2, 3, 7, 16] {
                let parts = dataset.split(n).await.unwrap();
                assert_eq!(all(&parts).await, (0..rows as i64).collect::<Vec<_>>());
                let sizes = sizes(&parts).await;
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
                let parts = dataset.split_equal(n).await.unwrap();
                assert_eq!(self::sizes(&parts).await, vec![rows / n; n]);
                assert_eq!(all(&parts).await, (0..(rows / n * n) as i64).collect::<Vec<_>>());
            }
        }
    }
}

#[tokio::test]
async fn a_dataset_runs_once_for_all_of_its_parts_and_not_at_all_where_its_rows_are_known() {
    let (dataset, made) = unknown(1000);
    let parts = dataset.split(4).await.unwrap();
    assert_eq!(all(&parts).await.len(), 1000);
    assert_eq!(made.load(SeqCst), 1000);
    let known = context().range(1000).unwrap();
    let parts = known.split(4).await.unwrap();
    assert_eq!(known.stats(), "", "nothing has run");
    assert_eq!(sizes(&parts).await, [250; 4]);
    // Parts are datasets like others.
    let doubled = parts[3].filter("id % 2 = 0").unwrap();
    assert_eq!(ids(&doubled).await[..2], [750, 752]);
}

#[tokio::test]
async fn parts_begin_at_indices() {
    let dataset = context().range_in_blocks(8, 8).unwrap();
    let parts = dataset.split_at_indices(&[2, 5]).await.unwrap();
    assert_eq!(sizes(&parts).await, [2, 3, 3]);
    assert_eq!(ids(&parts[1]).await, [2, 3, 4]);
    assert_eq!(sizes(&dataset.split_at_indices(&[2, 5, 5, 100]).await.unwrap()).await, [2, 3, 0, 3, 0]);
    assert_eq!(sizes(&dataset.split_at_indices(&[0]).await.unwrap()).await, [0, 8]);
    let error = dataset.split_at_indices(&[5, 2]).await.unwrap_err().to_string();
    assert!(error.contains("indices must be in order, got 5 before 2"), "{error}");
    let error = dataset.split_at_indices(&[]).await.unwrap_err().to_string();
    assert!(error.contains("needs at least one index"), "{error}");
}

#[tokio::test]
async fn proportions_are_rounded_as_rays() {
    let dataset = context().range_in_blocks(10, 3).unwrap();
    for (proportions, expected) in [
        (vec![0.5], vec![5, 5]),
        (vec![0.2, 0.3], vec![2, 3, 5]),
        (vec![0.2, 0.3, 0.3], vec![2, 3, 3, 2]),
        (vec![0.98, 0.01], vec![8, 1, 1]),
    ] {
        assert_eq!(sizes(&dataset.split_proportionately(&proportions).await.unwrap()).await, expected);
    }
    let many: Vec<f64> = [0.9].into_iter().chain([0.001; 90]).collect();
    for (proportions, said) in [
        (vec![], "at least one proportion"),
        (vec![-1.0], "proportions must be above 0, got -1"),
        (vec![0.0], "proportions must be above 0, got 0"),
        (vec![f64::NAN], "proportions must be above 0, got NaN"),
        (vec![1.0], "below 1 together"),
        (vec![0.5, 0.5], "below 1 together"),
        (many, "10 rows cannot be split into 92 parts that have rows"),
    ] {
        let error = dataset.split_proportionately(&proportions).await.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[tokio::test]
async fn rows_are_parted_for_training_and_testing() {
    let dataset = context().range_in_blocks(8, 8).unwrap();
    let (train, test) = dataset.train_test_split(0.25).await.unwrap();
    assert_eq!((ids(&train).await, ids(&test).await), ((0..6).collect(), vec![6, 7]));
    let (train, test) = dataset.train_test_split(1).await.unwrap();
    assert_eq!((ids(&train).await, ids(&test).await), ((0..7).collect(), vec![7]));
    let shuffled = TrainTestSplit { shuffle: Some(RandomSeed::fixed(3)), ..TrainTestSplit::default() };
    let (train, test) = dataset.train_test_split_with(TestSize::Fraction(0.25), shuffled).await.unwrap();
    let mut rows = [ids(&train).await, ids(&test).await].concat();
    assert_ne!(rows, (0..8).collect::<Vec<_>>());
    rows.sort_unstable();
    assert_eq!(rows, (0..8).collect::<Vec<_>>());
    for (size, said) in [
        (TestSize::Fraction(0.0), "above 0 and below 1, got 0"),
        (TestSize::Fraction(1.5), "above 0 and below 1, got 1.5"),
        (TestSize::Rows(0), "at least 1 and less than all 8 rows, got 0"),
        (TestSize::Rows(8), "at least 1 and less than all 8 rows, got 8"),
    ] {
        let error = dataset.train_test_split(size).await.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[tokio::test]
async fn each_value_of_a_column_is_parted_alike() {
    let sql =
        "SELECT id, CASE WHEN id < 80 THEN 'many' WHEN id < 97 THEN 'some' ELSE NULL END AS class FROM range(100)";
    let dataset = context().sql(sql).await.unwrap();
    let stratify = |column: &str| TrainTestSplit { stratify: Some(column.to_owned()), ..TrainTestSplit::default() };
    let (train, test) = dataset.train_test_split_with(0.25, stratify("class")).await.unwrap();
    assert_eq!(test.columns(), ["id", "class"]);
    assert_eq!((train.count().await.unwrap(), test.count().await.unwrap()), (76, 24));
    assert_eq!(test.filter("class = 'many'").unwrap().count().await.unwrap(), 20);
    assert_eq!(test.filter("class = 'some'").unwrap().count().await.unwrap(), 4);
    let error = dataset.train_test_split_with(0.25, stratify("clas")).await.unwrap_err().to_string();
    assert!(error.contains("class"), "{error}");
    let both = TrainTestSplit { shuffle: Some(RandomSeed::fixed(1)), ..stratify("class") };
    let error = dataset.train_test_split_with(0.25, both).await.unwrap_err().to_string();
    assert!(error.contains("stratify does not go together with shuffle"), "{error}");
}

#[tokio::test]
async fn rows_that_stream_by_are_parted_each_by_itself() {
    let dataset = context().range_in_blocks(20_000, 9).unwrap();
    let (train, test) = dataset.streaming_train_test_split(0.25, 5).unwrap();
    let (train_ids, test_ids) = (ids(&train).await, ids(&test).await);
    assert!((4800..5200).contains(&test_ids.len()), "{}", test_ids.len());
    let mut rows = [train_ids, test_ids.clone()].concat();
    rows.sort_unstable();
    assert_eq!(rows, (0..20_000).collect::<Vec<_>>());
    assert_eq!(ids(&test).await, test_ids, "the same in each execution");

    let sql =
        "SELECT id, id % 500 AS k, CASE WHEN id % 500 = 0 THEN NULL ELSE 'x' || (id % 500) END AS t FROM range(20000)";
    let dataset = context().sql(sql).await.unwrap();
    for column in ["k", "t"] {
        let (train, test) = dataset.streaming_train_test_split_by(column, 0.25).unwrap();
        let keys = |ds: &Dataset| ds.unique("k").unwrap();
        let (train_keys, test_keys) = (keys(&train).count().await.unwrap(), keys(&test).count().await.unwrap());
        assert_eq!(train_keys + test_keys, 500, "no key is in both");
        assert!((80..170).contains(&test_keys), "{test_keys}");
        assert_eq!(train.count().await.unwrap() + test.count().await.unwrap(), 20_000);
    }
    let error = dataset.streaming_train_test_split_by("kk", 0.5).unwrap_err().to_string();
    assert!(error.contains("'k'"), "{error}");
    let error = dataset.streaming_train_test_split(1.0, 5).unwrap_err().to_string();
    assert!(error.contains("above 0 and below 1, got 1"), "{error}");
}
