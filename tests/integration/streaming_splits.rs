use std::time::Duration;

use blockyard::prelude::*;
use blockyard::{Deal, OnLost, SplitBarrier, SplitIterator, SplitOptions, WindowSize};
use datafusion::arrow::array::RecordBatch;
use futures::StreamExt;

use crate::fixtures::{context, ints};

async fn ids(dataset: &Dataset) -> Vec<i64> {
    ints(&dataset.take_all().await.unwrap(), "id")
}

/// The batches of an epoch.
async fn epoch(split: &mut SplitIterator) -> Vec<Vec<i64>> {
    split.next_epoch().await.unwrap();
    let mut batches = Vec::new();
    while let Some(batch) = split.next_batch().await.unwrap() {
        batches.push(ints(&[batch], "id"));
    }
    batches
}

/// The batches of an epoch for all consumers, who read at once.
async fn epoch_of_all(splits: &mut [SplitIterator]) -> Vec<Vec<Vec<i64>>> {
    futures::future::join_all(splits.iter_mut().map(epoch)).await
}

#[tokio::test]
async fn rows_are_dealt_by_turns() {
    let dataset = context().range_in_blocks(100, 3).unwrap();
    let options = SplitOptions { batch_size: Some(10), ..SplitOptions::default() };
    let mut splits = dataset.streaming_split(3, options).unwrap();
    for _ in 0..3 {
        let dealt = epoch_of_all(&mut splits).await;
        for (consumer, batches) in dealt.iter().enumerate() {
            for (k, batch) in batches.iter().enumerate() {
                let first = ((k * 3 + consumer) * 10) as i64;
                assert_eq!(*batch, (first..first + 10).collect::<Vec<_>>(), "batch {k} of consumer {consumer}");
            }
        }
        assert_eq!(dealt.iter().map(Vec::len).collect::<Vec<_>>(), [4, 3, 3]);
    }
}

#[tokio::test]
async fn equal_parts_are_exact_for_any_number_of_rows_and_consumers() {
    for (n, rows, size) in [(1, 7, 3), (2, 100, 7), (3, 1000, 10), (5, 4, 2), (7, 997, 13), (16, 1023, 4), (16, 0, 4)] {
        let dataset = context().range_in_blocks(rows as u64, 4).unwrap();
        let options = SplitOptions { equal: true, batch_size: Some(size), ..SplitOptions::default() };
        let mut splits = dataset.streaming_split(n, options).unwrap();
        let dealt = epoch_of_all(&mut splits).await;
        for batches in &dealt {
            assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), rows / n, "{n} {rows} {size}");
            assert_eq!(batches.len(), dealt[0].len());
        }
        let mut all = dealt.concat().concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), rows / n * n, "each row at most once");
    }
}

#[tokio::test]
async fn global_batches_are_the_same_for_any_number_of_consumers_who_also_go_on_where_others_were() {
    let dataset = context().range_in_blocks(1000, 5).unwrap().local_shuffle(50, 3).unwrap();
    let mut steps: Vec<Vec<i64>> = Vec::new();
    let mut resume = None;
    // Four consumers for five steps, then three, then eight.
    for (n, wanted) in [(4, 5), (3, 4), (8, usize::MAX)] {
        let options = SplitOptions { resume: resume.clone(), ..SplitOptions::of_global_batches(64) };
        let mut splits = dataset.streaming_split(n, options).unwrap();
        for split in &mut splits {
            assert_eq!(split.next_epoch().await.unwrap(), Some(0));
        }
        for _ in 0..wanted {
            let mut step = Vec::new();
            for split in &mut splits {
                if let Some(batch) = split.next_batch().await.unwrap() {
                    step.extend(ints(&[batch], "id"));
                }
            }
            if step.is_empty() {
                break;
            }
            steps.push(step);
        }
        let tokens: Vec<_> = splits.iter().map(|split| split.token().unwrap()).collect();
        assert!(tokens.iter().all(|token| *token == tokens[0]));
        resume = Some(tokens[0].clone());
    }
    let expected = ids(&dataset).await;
    assert_eq!(steps, expected.chunks(64).map(<[i64]>::to_vec).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_epoch_begins_when_all_have_finished_the_one_before() {
    let dataset = context().range_in_blocks(100, 2).unwrap();
    let options =
        SplitOptions { batch_size: Some(10), max_wait: Some(Duration::from_millis(50)), ..Default::default() };
    let mut splits = dataset.streaming_split(2, options.clone()).unwrap();
    let mut second = splits.pop().unwrap();
    let mut first = splits.pop().unwrap();
    assert_eq!(epoch(&mut first).await.len(), 5);
    second.next_epoch().await.unwrap();
    second.next_batch().await.unwrap();
    let error = first.next_epoch().await.unwrap_err().to_string();
    assert!(error.contains("consumer 0 has waited for consumer 1 for 50ms"), "{error}");
    // It gives up the rest, and both are in the next one.
    let (one, other) = tokio::join!(first.next_epoch(), second.next_epoch());
    assert_eq!((one.unwrap(), other.unwrap()), (Some(1), Some(1)));
    let ids = ints(&[second.next_batch().await.unwrap().unwrap()], "id");
    assert_eq!(ids, (10..20).collect::<Vec<_>>(), "the next epoch from its start");

    let options = SplitOptions { barrier: SplitBarrier::None, ..options };
    let mut splits = dataset.streaming_split(2, options).unwrap();
    splits[1].next_epoch().await.unwrap();
    for k in 0..2 {
        assert_eq!(epoch(&mut splits[0]).await.len(), 5, "epoch {k} without a barrier");
    }
}

#[tokio::test]
async fn a_consumer_that_is_lost_ends_the_others_with_a_token() {
    let dataset = context().range_in_blocks(100, 2).unwrap();
    let options = SplitOptions { batch_size: Some(10), ..SplitOptions::default() };
    let mut splits = dataset.streaming_split(2, options.clone()).unwrap();
    for split in &mut splits {
        split.next_epoch().await.unwrap();
        for _ in 0..2 {
            split.next_batch().await.unwrap().unwrap();
        }
    }
    splits[0].ack();
    drop(splits.pop());
    let error = splits[0].next_batch().await.unwrap_err().to_string();
    assert!(
        error.contains("consumer 1 of the split was lost in epoch 0 behind 2 turns; all have acknowledged 1 turns"),
        "{error}"
    );
    let token = error[error.find('{').unwrap()..=error.rfind('}').unwrap()].parse().unwrap();
    let options = SplitOptions { resume: Some(token), ..options };
    let mut splits = dataset.streaming_split(2, options).unwrap();
    assert_eq!(epoch_of_all(&mut splits).await[0][0][0], 20, "behind the turn that all have acknowledged");
    let last = splits.pop();
    drop(last);
    let error = splits[0].next_epoch().await.unwrap_err().to_string();
    assert!(error.contains("consumer 1 of the split is gone"), "{error}");
}

#[tokio::test]
async fn a_slow_consumer_holds_up_others_only_when_its_buffer_is_full() {
    let dataset = context().range_in_blocks(100_000, 7).unwrap();
    let dataset = dataset.map_batches(|batch: RecordBatch| Ok(batch)).unwrap();
    let options = SplitOptions {
        batch_size: Some(100),
        buffer_bytes: blockyard::ByteSize(16 << 10),
        max_wait: Some(Duration::from_millis(200)),
        ..SplitOptions::default()
    };
    let mut splits = dataset.streaming_split(2, options).unwrap();
    for split in &mut splits {
        split.next_epoch().await.unwrap();
    }
    let mut batches = 0;
    let error = loop {
        match splits[0].next_batch().await {
            Ok(batch) => batches += usize::from(batch.is_some()),
            Err(e) => break e.to_string(),
        }
    };
    assert!(error.contains("consumer 0 has waited for consumer 1"), "{error}");
    assert!((20..40).contains(&batches), "{batches} batches of 800 bytes");
}

#[tokio::test]
async fn splits_that_cannot_be_are_refused() {
    let dataset = context().range(10).unwrap();
    let default = SplitOptions::default;
    for (n, options, said) in [
        (0, default(), "at least 1 consumer, got 0"),
        (2, SplitOptions { batch_size: Some(0), ..default() }, "batch_size must be at least 1, got 0"),
        (2, SplitOptions { global_batch_size: Some(8), ..default() }, "not both"),
        (2, SplitOptions { batch_size: None, ..default() }, "needs a batch_size or a global_batch_size"),
        (3, SplitOptions { equal: true, ..SplitOptions::of_global_batches(64) }, "that 3 consumers divide, got 64"),
    ] {
        let error = dataset.streaming_split(n, options).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let failing = dataset.map_batches(|_: RecordBatch| datafusion::common::exec_err!("no rows today"));
    let failing = match failing {
        Ok(dataset) => dataset,
        Err(_) => dataset.filter("id / (id - 5) >= 0").unwrap(),
    };
    let mut splits = failing.streaming_split(2, default()).unwrap();
    let error = splits[0].next_epoch().await.unwrap_err().to_string();
    assert!(error.to_lowercase().contains("divide by zero"), "{error}");
}

/// The batches of each epoch of all consumers, until there are no more.
async fn all_epochs(split: &mut SplitIterator) -> Vec<(u64, Vec<i64>)> {
    let mut epochs = Vec::new();
    while let Some(epoch) = split.next_epoch().await.unwrap() {
        let mut rows = Vec::new();
        while let Some(batch) = split.next_batch().await.unwrap() {
            rows.extend(ints(&[batch], "id"));
        }
        epochs.push((epoch, rows));
    }
    epochs
}

#[tokio::test]
async fn consumers_of_a_pipeline_wait_for_each_other_at_windows_or_epochs() {
    let windows = context().range_in_blocks(20, 10).unwrap().window(WindowSize::Blocks(3)).unwrap();
    let mut splits = windows.split(2, true).unwrap();
    let dealt = futures::future::join_all(splits.iter_mut().map(all_epochs)).await;
    let expected = |parts: [&[i64]; 4]| (0..4).map(|w| (w as u64, parts[w].to_vec())).collect::<Vec<_>>();
    assert_eq!(dealt[0], expected([&[0, 1, 2], &[6, 7, 8], &[12, 13, 14], &[18]]));
    assert_eq!(dealt[1], expected([&[3, 4, 5], &[9, 10, 11], &[15, 16, 17], &[19]]));

    // By epochs, from a token on in the middle of the second one.
    let twice = windows.repeat(2).unwrap();
    let options = SplitOptions { max_wait: Some(Duration::from_secs(60)), ..SplitOptions::of_global_batches(4) };
    let mut splits = twice.streaming_split(2, options.clone()).unwrap();
    let whole = futures::future::join_all(splits.iter_mut().map(all_epochs)).await;
    let of_epoch = |first: i64| (0..10).map(|k| first + k / 2 * 4 + k % 2).collect::<Vec<_>>();
    assert_eq!(whole, [0, 2].map(|first| vec![(0, of_epoch(first)), (1, of_epoch(first))]));
    let mut splits = twice.streaming_split(2, options.clone()).unwrap();
    for epoch in 0..2 {
        let entered = futures::future::join_all(splits.iter_mut().map(SplitIterator::next_epoch)).await;
        assert!(entered.into_iter().all(|entered| entered.unwrap() == Some(epoch)));
        for _ in 0..3 {
            for split in &mut splits {
                split.next_batch().await.unwrap().unwrap();
            }
        }
    }
    let resume = Some(splits[0].token().unwrap());
    let mut splits = twice.streaming_split(2, SplitOptions { resume, ..options }).unwrap();
    let rest = futures::future::join_all(splits.iter_mut().map(all_epochs)).await;
    assert_eq!(rest, [0, 2].map(|first| vec![(1, of_epoch(first)[6..].to_vec())]));

    let error = context()
        .range(9)
        .unwrap()
        .streaming_split(2, SplitOptions { barrier: SplitBarrier::Window, ..Default::default() });
    assert!(error.unwrap_err().to_string().contains("needs a pipeline"));
}

#[tokio::test]
async fn a_consumer_comes_back_at_its_first_batch_that_was_not_acknowledged() {
    let dataset = context().range_in_blocks(60, 2).unwrap();
    let on_lost = OnLost::Wait(Duration::from_secs(600));
    let options = SplitOptions { batch_size: Some(10), on_lost, ..SplitOptions::default() };
    let mut splits = dataset.streaming_split(2, options.clone()).unwrap();
    for split in &mut splits {
        split.next_epoch().await.unwrap();
        split.next_batch().await.unwrap().unwrap();
    }
    let error = splits[0].rejoin(1).unwrap_err().to_string();
    assert!(error.contains("consumer 1 of the split is here already"), "{error}");
    let error = splits[0].rejoin(2).unwrap_err().to_string();
    assert!(error.contains("2 consumers, and none with number 2"), "{error}");
    drop(splits.pop());
    let mut second = splits[0].rejoin(1).unwrap();
    assert_eq!(second.next_epoch().await.unwrap(), Some(0));
    let mut rows = Vec::new();
    while let Some(batch) = second.next_batch().await.unwrap() {
        rows.extend(ints(&[batch], "id"));
    }
    assert_eq!(rows, [10, 30, 50].iter().flat_map(|first| *first..first + 10).collect::<Vec<i64>>());
    // One that is away for too long is lost.
    let on_lost = OnLost::Wait(Duration::from_millis(20));
    let mut splits =
        dataset.streaming_split(2, SplitOptions { on_lost, buffer_bytes: blockyard::ByteSize(1), ..options }).unwrap();
    for split in &mut splits {
        split.next_epoch().await.unwrap();
        split.next_batch().await.unwrap().unwrap();
    }
    drop(splits.pop());
    let error = loop {
        match splits[0].next_batch().await {
            Ok(batch) => assert!(batch.is_some(), "it cannot end without the other"),
            Err(e) => break e.to_string(),
        }
    };
    assert!(
        error.contains("consumer 1 of the split was lost in epoch 0 behind 1 turns; all have acknowledged 0"),
        "{error}"
    );
    assert!(splits[0].rejoin(1).unwrap_err().to_string().contains("is gone for good"));
}

#[tokio::test]
async fn by_demand_whoever_asks_gets_the_next_batch_and_what_others_lost() {
    let dataset = context().range_in_blocks(100, 4).unwrap();
    let options = SplitOptions {
        batch_size: Some(10),
        deal: Deal::Demand,
        on_lost: OnLost::Redistribute,
        ..SplitOptions::default()
    };
    let mut splits = dataset.streaming_split(3, options.clone()).unwrap();
    for split in &mut splits {
        split.next_epoch().await.unwrap();
    }
    let mut rows: Vec<i64> = Vec::new();
    for _ in 0..3 {
        rows.extend(ints(&[splits[0].next_batch().await.unwrap().unwrap()], "id"));
    }
    assert_eq!(rows, (0..30).collect::<Vec<_>>(), "nobody else has asked");
    let lost = ints(&[splits[2].next_batch().await.unwrap().unwrap()], "id");
    assert_eq!(lost, (30..40).collect::<Vec<_>>());
    assert!(splits[0].token().unwrap_err().to_string().contains("by demand has no tokens"));
    drop(splits.pop());
    let again = ints(&[splits[1].next_batch().await.unwrap().unwrap()], "id");
    assert_eq!(again, lost);
    rows.extend(again);
    // The first one goes on; the second has acknowledged when it asks again.
    let (first, second) = splits.split_at_mut(1);
    let rest = async |split: &mut SplitIterator| {
        let mut rows = Vec::new();
        while let Some(batch) = split.next_batch().await.unwrap() {
            rows.extend(ints(&[batch], "id"));
        }
        rows
    };
    let (one, other) = tokio::join!(rest(&mut first[0]), rest(&mut second[0]));
    rows.extend([one, other].concat());
    rows.sort_unstable();
    assert_eq!(rows, (0..100).collect::<Vec<_>>());

    for (options, said) in [
        (SplitOptions { equal: true, ..options.clone() }, "dealt by turns, not by demand"),
        (SplitOptions { batch_size: None, global_batch_size: Some(4), ..options.clone() }, "not by demand"),
        (SplitOptions { deal: Deal::Turns, ..options }, "by demand only, not by turns"),
    ] {
        let error = dataset.streaming_split(2, options).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[tokio::test]
async fn the_table_of_iterators_says_who_waits_for_whom() {
    let context = context();
    let dataset = context.range_in_blocks(100, 2).unwrap();
    let options = SplitOptions { batch_size: Some(10), ..SplitOptions::default() };
    let mut splits = dataset.streaming_split(2, options).unwrap();
    for split in &mut splits {
        split.next_epoch().await.unwrap();
        split.next_batch().await.unwrap().unwrap();
    }
    while splits[0].next_batch().await.unwrap().is_some() {}
    let mut batches =
        dataset.iter_batches(IterOptions { batch_size: Some(7), ..IterOptions::default() }).await.unwrap();
    batches.next().await.unwrap().unwrap();
    let (first, second) = splits.split_at_mut(1);
    let look = async {
        let sql = "SELECT consumer, state, waits_for, epoch, rows, token IS NOT NULL AS has_token
                   FROM blockyard.iterators ORDER BY name, consumer";
        // The first consumer waits for the second as soon as it was asked.
        let waits = async || context.sql(sql).await.unwrap().show(10).await.unwrap();
        loop {
            let table = waits().await;
            if table.contains("arrived") {
                break table;
            }
        }
    };
    let (_, table) = tokio::join!(async { first[0].next_epoch().await.unwrap() }, async {
        let table = look.await;
        second[0].next_epoch().await.unwrap();
        table
    });
    insta::assert_snapshot!(table);
    drop((splits, batches));
    assert_eq!(context.sql("SELECT * FROM blockyard.iterators").await.unwrap().count().await.unwrap(), 0);
}

/// What is over for one is not for others, who are slower.
#[tokio::test]
async fn a_consumer_that_has_finished_may_go_before_others_begin() {
    let dataset = context().range_in_blocks(100, 2).unwrap();
    let options = SplitOptions { batch_size: Some(10), ..SplitOptions::default() };
    let mut splits = dataset.streaming_split(2, options).unwrap();
    epoch_of_all(&mut splits).await;
    let mut first = splits.remove(0);
    assert_eq!(epoch(&mut first).await.len(), 5);
    drop(first);
    assert_eq!(epoch(&mut splits[0]).await.len(), 5, "the epoch that both have begun");
    let error = splits[0].next_epoch().await.unwrap_err().to_string();
    assert!(error.contains("consumer 0 of the split is gone"), "{error}");
}
