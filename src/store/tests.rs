//! The store as a whole, on disks that work and on disks that fail.
#![expect(clippy::disallowed_methods, reason = "threads of tests are joined by them")]

use std::io::Seek;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use datafusion::arrow::array::{
    ArrayRef, AsArray, DictionaryArray, Int64Array, RecordBatch, StringArray, StringViewArray,
};
use datafusion::arrow::datatypes::{Int32Type, Int64Type};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use proptest::prelude::*;

use super::spill::faulty::{Faults, FaultyDisk};
use super::*;
use crate::block::Block;
use crate::config::SpillCompression;

/// A store of `limit` bytes.
pub(crate) fn store(limit: usize) -> Arc<BlockStore> {
    let directories = Arc::new(SpillDirectories::open(&[], u64::MAX).unwrap());
    Arc::new(BlockStore::new(Arc::new(Budget::new(limit)), directories, SpillCompression::None))
}

fn faulty_store(limit: usize) -> (Arc<BlockStore>, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let disk = Arc::new(FaultyDisk(Arc::clone(&faults)));
    let directories = Arc::new(SpillDirectories::on_disk(&[], u64::MAX, disk).unwrap());
    let store = BlockStore::new(Arc::new(Budget::new(limit)), directories, SpillCompression::None);
    (Arc::new(store), faults)
}

/// A block of so many integers.
pub(crate) fn block(rows: usize) -> Block {
    let column = Arc::new(Int64Array::from_iter_values(0..rows as i64)) as _;
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    Block::new(batch.schema(), vec![batch])
}

fn batch(rows: i64) -> RecordBatch {
    let numbers = Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef;
    let words = Arc::new(StringArray::from_iter_values((0..rows).map(|i| format!("row {i}")))) as ArrayRef;
    RecordBatch::try_from_iter([("n", numbers), ("s", words)]).unwrap()
}

fn put(store: &Arc<BlockStore>, block: Block) -> datafusion::common::Result<BlockHandle> {
    store.put(block, NextUse::Soon, &Arc::default())
}

#[test]
fn a_slow_disk_holds_up_only_those_who_need_it() {
    let (store, faults) = faulty_store(30_000);
    let small = put(&store, block(100)).unwrap();
    let stuck = faults.slow.lock();
    std::thread::scope(|scope| {
        // Too large for memory, so that they go to disk, all at once.
        let spilling: Vec<_> = (0..3).map(|_| scope.spawn(|| put(&store, block(10_000)))).collect();
        let more = put(&store, block(100)).unwrap();
        assert_eq!((small.get().unwrap().num_rows(), more.get().unwrap().num_rows()), (100, 100));
        drop(stuck);
        for spilled in spilling {
            assert_eq!(spilled.join().unwrap().unwrap().get().unwrap().num_rows(), 10_000);
        }
    });
    assert!(store.totals().spilled_blocks() >= 3);
}

#[test]
fn shared_buffers_are_counted_once_and_freed_with_the_last_slice() {
    let store = store(usize::MAX);
    let whole = batch(10_000);
    let slices: Vec<_> = (0..10).map(|i| whole.slice(i * 1000, 1000)).collect();
    let handle = put(&store, Block::new(whole.schema(), slices)).unwrap();
    let once = store.budget().blocks();
    assert!(once < whole.get_array_memory_size() * 11 / 10, "{once}");
    let second = put(&store, Block::new(whole.schema(), vec![whole.slice(5, 5)])).unwrap();
    let beside = store.budget().blocks() - once;
    assert!(beside < 1000, "{beside} for the arrays of the second block");
    drop((handle, whole));
    let held = store.budget().blocks();
    assert!(held > once * 9 / 10, "the second block still holds the buffers, not {held}");
    drop(second);
    assert_eq!(store.budget().blocks(), 0);
}

#[test]
fn spilled_batches_come_back_one_by_one() {
    for compression in [SpillCompression::None, SpillCompression::Lz4, SpillCompression::Zstd] {
        let store = store(0);
        store.set_compression(compression);
        let whole = batch(100);
        let pieces = vec![whole.slice(0, 10), whole.slice(10, 0), whole.slice(10, 90)];
        let handle = put(&store, Block::new(whole.schema(), pieces.clone())).unwrap();
        assert_eq!(store.totals().spilled_blocks(), 1);
        for (i, piece) in pieces.iter().enumerate() {
            assert_eq!(&handle.get_batch(i).unwrap(), piece);
        }
        assert_eq!(handle.get().unwrap().batches(), pieces);
    }
}

#[test]
fn dictionaries_and_views_come_back() {
    let store = store(0);
    let of = |words: [&str; 2]| {
        let column: DictionaryArray<Int32Type> = words.into_iter().collect();
        let views = Arc::new(StringViewArray::from_iter_values(words)) as ArrayRef;
        RecordBatch::try_from_iter([("d", Arc::new(column) as ArrayRef), ("v", views)]).unwrap()
    };
    let batches = vec![of(["a", "b"]), of(["x", "a string that is too long to be inlined"])];
    let handle = put(&store, Block::new(batches[0].schema(), batches.clone())).unwrap();
    assert_eq!(handle.get_batch(1).unwrap(), batches[1]);
    assert_eq!(handle.get().unwrap().batches(), batches);
}

#[test]
fn a_spill_file_is_a_sequence_of_aligned_arrow_streams() {
    let store = store(0);
    let whole = batch(100);
    let handles: Vec<_> = (0..3)
        .map(|i| put(&store, Block::new(whole.schema(), vec![whole.slice(i, 10), whole.slice(i, 5)])).unwrap())
        .collect();
    let files = store.directories().files();
    assert_eq!(files.len(), 1, "blocks share files");
    let mut file = std::io::BufReader::new(std::fs::File::open(&files[0].path).unwrap());
    for i in 0..3 {
        let over = file.stream_position().unwrap() % 64;
        file.seek_relative((64 - over as i64) % 64).unwrap();
        let stream = datafusion::arrow::ipc::reader::StreamReader::try_new(&mut file, None).unwrap();
        let batches: Vec<_> = stream.map(Result::unwrap).collect();
        assert_eq!(batches, [whole.slice(i, 10), whole.slice(i, 5)]);
    }
    drop(handles);
}

#[test]
fn files_go_with_their_blocks() {
    let store = store(0);
    let handle = put(&store, block(1000)).unwrap();
    assert!(store.directories().used_bytes() > 8000);
    drop(handle);
    let next = put(&store, block(10)).unwrap();
    drop(next);
    assert!(store.directories().used_bytes() < 10_000, "a file without blocks takes no more");
    drop(store);
}

#[test]
fn what_is_needed_last_leaves_first() {
    let one = block(16_384);
    let store = store(3 * 16_384 * 8 + 1000);
    let owner = Arc::default();
    let kept = store.put(one, NextUse::Kept, &owner).unwrap();
    let soon: Vec<_> = (0..3).map(|_| store.put(block(16_384), NextUse::Soon, &owner).unwrap()).collect();
    let in_memory = |handle: &BlockHandle| handle.batch_in_memory(0).is_some();
    assert!(!in_memory(&kept) && soon.iter().all(in_memory));
    let _more = store.put(block(1000), NextUse::Soon, &owner).unwrap();
    assert!(in_memory(&soon[0]) && in_memory(&soon[1]) && !in_memory(&soon[2]));
}

#[test]
fn pinned_blocks_stay_and_what_finds_no_room_goes_to_disk() {
    let store = store(200_000);
    let owner = Arc::default();
    let first = store.put(block(16_000), NextUse::Soon, &owner).unwrap();
    let pin = first.pin().unwrap();
    let second = store.put(block(16_000), NextUse::Soon, &owner).unwrap();
    assert!(first.batch_in_memory(0).is_some() && second.batch_in_memory(0).is_none());
    let error = second.pin().unwrap_err().to_string();
    assert!(error.contains("restoring a spilled block needs 125KiB"), "{error}");
    assert_eq!(pin.block().num_rows(), 16_000);
    drop(pin);
    let pin = second.pin().unwrap();
    assert_eq!(pin.block().num_rows(), 16_000);
    assert!(first.batch_in_memory(0).is_none());
    assert!(store.budget().peak() <= 200_000);
    let states: Vec<_> = store.blocks().into_iter().map(|b| (b.state, b.pins)).collect();
    assert_eq!(states, [("spilled", 0), ("clean", 1)]);
}

#[test]
fn blocks_are_written_ahead_of_need() {
    let store = store(1_000_000);
    let writer = std::thread::spawn(BlockStore::write_behind(&store));
    let owner = Arc::default();
    let handles: Vec<_> = (0..7).map(|_| store.put(block(16_000), NextUse::Soon, &owner).unwrap()).collect();
    while store.blocks().iter().filter(|b| b.state == "clean").count() < 2 {
        std::thread::yield_now();
    }
    let before = store.totals().spilled_blocks();
    let set = store.working_set(&owner, 300_000).unwrap();
    assert_eq!(store.totals().clean_evictions() + store.totals().dirty_evictions(), 2);
    assert!(store.totals().clean_evictions() >= 1, "{before}");
    let budget = Arc::clone(store.budget());
    // The writer may still hold the block that it is writing.
    drop((set, handles, store));
    writer.join().unwrap();
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_full_disk_names_file_block_and_operator_and_loses_nothing() {
    let (store, faults) = faulty_store(200_000);
    let owner = Arc::new(Owner::default());
    owner.describe(1, || "RandomShuffleMap".to_owned());
    let first = store.put(block(16_000), NextUse::Soon, &owner).unwrap();
    faults.room.store(5000, SeqCst);
    faults.full.store(true, SeqCst);
    let error = store.put(block(16_000), NextUse::Soon, &owner).unwrap_err().to_string();
    assert!(error.contains("no space left on device"), "{error}");
    assert!(error.contains("spilling a block of 16000 rows of RandomShuffleMap"), "{error}");
    assert!(error.contains("cannot write spill file") && error.contains(".arrow"), "{error}");
    assert_eq!(first.get().unwrap().num_rows(), 16_000, "the block that could not leave is still there");
    faults.full.store(false, SeqCst);
    let second = store.put(block(16_000), NextUse::Soon, &owner).unwrap();
    assert_eq!(first.get().unwrap().batches(), block(16_000).batches(), "a file that was cut short is not used again");
    drop((first, second));
    assert_eq!(store.budget().used(), 0);
}

#[test]
fn blocks_go_to_another_directory_when_a_disk_is_full() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let faults = Arc::new(Faults::default());
    faults.room.store(5000, SeqCst);
    faults.full.store(true, SeqCst);
    *faults.full_below.lock() = Some(one.path().to_owned());
    let roots = [one.path().to_owned(), two.path().to_owned()];
    let directories = SpillDirectories::on_disk(&roots, u64::MAX, Arc::new(FaultyDisk(faults))).unwrap();
    let store = Arc::new(BlockStore::new(Arc::new(Budget::new(0)), Arc::new(directories), SpillCompression::None));
    let handles: Vec<_> = (0..4).map(|_| put(&store, block(16_000)).unwrap()).collect();
    for handle in &handles {
        assert_eq!(handle.get().unwrap().batches(), block(16_000).batches());
    }
}

#[test]
fn damage_is_an_error_and_never_wrong_rows() {
    let (store, faults) = faulty_store(0);
    let handle = put(&store, block(1000)).unwrap();
    faults.read_flips_a_bit.store(true, SeqCst);
    let error = handle.get().unwrap_err().to_string();
    assert!(error.contains("is damaged: the checksum of batch 0"), "{error}");
    faults.read_flips_a_bit.store(false, SeqCst);
    faults.read_fails.store(true, SeqCst);
    let error = handle.get().unwrap_err().to_string();
    assert!(error.contains("cannot read spill file") && error.contains("input/output error"), "{error}");
    faults.read_fails.store(false, SeqCst);
    assert_eq!(handle.get().unwrap().batches(), block(1000).batches());
    faults.create_fails.store(true, SeqCst);
    drop(handle);
    let error = put(&store, block(1000)).unwrap_err().to_string();
    assert!(error.contains("cannot create") && error.contains("read-only"), "{error}");
}

#[test]
fn a_file_that_was_cut_or_changed_behind_our_back_is_an_error() {
    let store = store(0);
    let handle = put(&store, block(1000)).unwrap();
    let path: PathBuf = store.directories().files().remove(0).path;
    let bytes = std::fs::read(&path).unwrap();
    let mut changed = bytes.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 0x10;
    std::fs::write(&path, changed).unwrap();
    let error = handle.get().unwrap_err().to_string();
    assert!(error.contains("is damaged") && error.contains(&path.display().to_string()), "{error}");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = handle.get().unwrap_err().to_string();
    assert!(error.contains("cannot read spill file"), "{error}");
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(handle.get().unwrap().num_rows(), 1000);
}

#[test]
fn a_lower_limit_takes_effect_at_once() {
    let store = store(1_000_000);
    let _handles: Vec<_> = (0..7).map(|_| put(&store, block(16_000)).unwrap()).collect();
    store.set_limit(300_000).unwrap();
    assert!(store.budget().used() <= 300_000, "{}", store.budget());
}

/// What a thread does with the store.
#[derive(Debug, Clone)]
enum Action {
    Put { rows: usize, next_use: u8 },
    Get(usize),
    GetBatch(usize),
    Pin(usize),
    Unpin,
    Drop(usize),
    Clone(usize),
    Grow(usize),
    Shrink(usize),
    Reserve(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1..4000usize, 0..3u8).prop_map(|(rows, next_use)| Action::Put { rows, next_use }),
        3 => (0..100usize).prop_map(Action::Get),
        2 => (0..100usize).prop_map(Action::GetBatch),
        2 => (0..100usize).prop_map(Action::Pin),
        1 => Just(Action::Unpin),
        2 => (0..100usize).prop_map(Action::Drop),
        1 => (0..100usize).prop_map(Action::Clone),
        2 => (1..40_000usize).prop_map(Action::Grow),
        1 => (1..40_000usize).prop_map(Action::Shrink),
        1 => (1..20_000usize).prop_map(Action::Reserve),
    ]
}

/// A block in three batches whose rows tell which block it is.
fn numbered(seed: i64, rows: usize) -> Block {
    let column = |part: usize| {
        Arc::new(Int64Array::from_iter_values((0..rows).map(|i| seed + (part * rows + i) as i64))) as ArrayRef
    };
    let batches: Vec<_> = (0..3).map(|part| RecordBatch::try_from_iter([("x", column(part))]).unwrap()).collect();
    Block::new(batches[0].schema(), batches)
}

fn is_numbered(block: &Block, seed: i64) -> bool {
    let values = block.batches().iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec());
    values.enumerate().all(|(i, value)| value == seed + i as i64)
}

/// Runs the actions of one thread; every block that it reads must be the one that it put.
fn act(store: &Arc<BlockStore>, reservation: &MemoryReservation, thread: usize, actions: Vec<Action>) {
    let owner = Arc::new(Owner::default());
    let mut held: Vec<(i64, usize, BlockHandle)> = Vec::new();
    let mut pins: Vec<(i64, PinnedBlock)> = Vec::new();
    let mut reserved = Vec::new();
    for (number, action) in actions.into_iter().enumerate() {
        let pick = |i: usize| (!held.is_empty()).then(|| i % held.len());
        match action {
            Action::Put { rows, next_use } => {
                let seed = (thread * 1_000_000 + number * 1000) as i64;
                let next_use = [NextUse::Soon, NextUse::AfterInput, NextUse::Kept][usize::from(next_use)];
                held.push((seed, rows, store.put(numbered(seed, rows), next_use, &owner).unwrap()));
            }
            Action::Get(i) => {
                if let Some((seed, rows, handle)) = pick(i).map(|i| &held[i]) {
                    let block = handle.get().unwrap();
                    assert!(block.num_rows() == 3 * rows && is_numbered(&block, *seed));
                }
            }
            Action::GetBatch(i) => {
                if let Some((seed, rows, handle)) = pick(i).map(|i| &held[i]) {
                    let batch = handle.get_batch(2).unwrap();
                    assert_eq!(batch.column(0).as_primitive::<Int64Type>().value(0), seed + 2 * *rows as i64);
                }
            }
            Action::Pin(i) => {
                if let Some((seed, _, handle)) = pick(i).map(|i| &held[i])
                    && let Ok(pin) = handle.pin()
                {
                    pins.push((*seed, pin));
                }
            }
            Action::Unpin => {
                if let Some((seed, pin)) = pins.pop() {
                    assert!(is_numbered(pin.block(), seed));
                }
            }
            Action::Drop(i) => {
                if let Some(i) = pick(i) {
                    held.swap_remove(i);
                }
            }
            Action::Clone(i) => {
                if let Some(i) = pick(i) {
                    held.push(held[i].clone());
                }
            }
            Action::Grow(bytes) => {
                // A refusal is an answer too.
                let _answer = reservation.try_grow(bytes);
            }
            Action::Shrink(bytes) => {
                reservation.shrink(bytes.min(reservation.size() - 1));
            }
            Action::Reserve(bytes) => {
                let mut set = store.working_set(&owner, 0).unwrap();
                if set.try_resize(bytes).unwrap() {
                    reserved.push(set);
                }
                if reserved.len() > 3 {
                    reserved.clear();
                }
            }
        }
    }
    for (seed, pin) in pins {
        assert!(is_numbered(pin.block(), seed));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

    #[test]
    fn threads_never_go_over_the_limit_and_never_lose_a_block(
        programs in prop::collection::vec(prop::collection::vec(action(), 1..60), 1..5),
        limit in 50_000..500_000usize,
    ) {
        let store = store(limit);
        let pool: Arc<dyn MemoryPool> = Arc::new(SharedMemoryPool::new(Arc::clone(&store)));
        let writer = std::thread::spawn(BlockStore::write_behind(&store));
        let threads: Vec<_> = programs
            .into_iter()
            .enumerate()
            .map(|(thread, actions)| {
                let store = Arc::clone(&store);
                // One that holds nothing gets a trifle even when tasks have everything.
                let reservation = MemoryConsumer::new("operator").with_can_spill(true).register(&pool);
                reservation.grow(1);
                move || act(&store, &reservation, thread, actions)
            })
            .collect();
        let threads: Vec<_> = threads.into_iter().map(std::thread::spawn).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let (budget, directories) = (Arc::clone(store.budget()), Arc::clone(store.directories()));
        // The writer may still hold the block that it is writing.
        drop((pool, store));
        writer.join().unwrap();
        prop_assert!(budget.peak() <= limit, "{} of {limit}", budget.peak());
        prop_assert_eq!(budget.used(), 0);
        prop_assert_eq!(directories.used_bytes(), 0);
    }
}

#[test]
fn pieces_of_nested_values_take_their_own_bytes_on_disk() {
    use datafusion::arrow::array::{ListBuilder, StringBuilder};
    use datafusion::arrow::compute::interleave_record_batch;
    let mut lists = ListBuilder::new(StringBuilder::new());
    for row in 0..10_000 {
        lists.values().append_value(format!("a text of row {row}"));
        lists.values().append_null();
        lists.append(true);
    }
    let batch = RecordBatch::try_from_iter([("l", Arc::new(lists.finish()) as ArrayRef)]).unwrap();
    let rows: Vec<_> = (0..100).map(|row| (0, row * 100)).collect();
    for compression in [SpillCompression::None, SpillCompression::Lz4] {
        for piece in [batch.slice(500, 100), interleave_record_batch(&[&batch], &rows).unwrap()] {
            let store = store(0);
            store.set_compression(compression);
            let handle = put(&store, Block::new(piece.schema(), vec![piece.clone(); 50])).unwrap();
            assert!(handle.metadata().size_bytes < 50 * 5000, "{}", handle.metadata().size_bytes);
            assert!(store.totals().spilled_bytes() < 50 * 5000, "{}", store.totals().spilled_bytes());
            assert_eq!(handle.get_batch(1).unwrap(), piece);
        }
    }
}
