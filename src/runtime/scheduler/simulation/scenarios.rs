//! Plans by chance, and the shapes of hangs that users of Ray have reported.

use std::sync::Arc;
use std::time::Duration;

use super::super::core::{Core, Ranking};
use super::super::op::{OpSpec, OpView};
use super::super::policies::{BackpressurePolicy, policies_by_name};
use super::super::pool::PoolSpec;
use super::super::resources::Resources;
use super::barriers::Leaf;
use super::{Consumer, Plan, Random, Stage, World, cpus};
use crate::config::BlockyardOptions;

/// A plan by chance.
fn random_plan(random: &mut Random, total: &Resources) -> Plan {
    let mut stages: Vec<Stage> = Vec::new();
    let sources = random.between(1, 2) as usize;
    let max_bytes = random.between(1, 400);
    for _ in 0..sources {
        stages.push(Stage {
            tasks: random.between(0, 8) as usize,
            fan_out: random.between(1, 3),
            needs: cpus([0, 250, 500, 1000][random.below(4) as usize]),
            max_bytes: random.between(1, max_bytes),
            max_micros: random.between(0, 100),
            ..Stage::default()
        });
    }
    let maps = random.between(u64::from(sources > 1), 5) as usize;
    for map in 0..maps {
        let mut inputs: Vec<usize> = if map == 0 { (0..sources).collect() } else { vec![stages.len() - 1] };
        let leaf = match random.below(12) {
            0 => Leaf::Exchange,
            1 => Leaf::Sort,
            2 => Leaf::Join,
            3 => Leaf::Zip,
            _ => Leaf::Blocks,
        };
        if matches!(leaf, Leaf::Join | Leaf::Zip) && map > 0 {
            // The other input is a source, or a stage over one.
            stages.push(Stage { tasks: random.between(0, 8) as usize, needs: cpus(500), ..Stage::default() });
            if random.one_in(2) {
                stages.push(Stage { inputs: vec![stages.len() - 1], ..Stage::default() });
            }
            inputs.push(stages.len() - 1);
            if random.one_in(2) {
                inputs.reverse();
            }
        }
        if leaf == Leaf::Exchange {
            inputs.iter().for_each(|input| stages[*input].feeds_all_to_all = true);
        }
        let tasks = if leaf == Leaf::Blocks { 0 } else { random.between(1, 4) as usize };
        let milli_gpus = if total.milli_gpus > 0 && random.one_in(3) { 1000 } else { 0 };
        stages.push(Stage {
            inputs,
            leaf,
            tasks,
            max_tasks: random.one_in(2).then(|| random.between(1, 8) as usize),
            needs: Resources {
                milli_cpus: random.between(0, 5000),
                milli_gpus,
                memory: if random.one_in(3) { random.between(0, 5000) } else { 0 },
                ..Resources::default()
            },
            fan_out: if random.one_in(8) { 20 } else { random.between(1, 2) },
            drops_one_in: if random.one_in(4) { 2 } else { u64::MAX },
            fails_one_in: if random.one_in(4) { 3 } else { u64::MAX },
            max_bytes: random.between(1, max_bytes),
            max_micros: if random.one_in(5) { 5000 } else { random.between(0, 100) },
            pool: random.one_in(3).then(|| {
                let min = random.below(3) as usize;
                let max = random.one_in(2).then(|| min.max(1) + random.below(5) as usize);
                PoolSpec { min, max, max_tasks_in_flight: random.between(1, 3) as usize }
            }),
            build_micros: if random.one_in(3) { 20_000 } else { random.between(0, 100) },
            ..Stage::default()
        });
    }
    let last = stages.len() - 1;
    stages[last].feeds_all_to_all = random.one_in(5);
    let mut limits = Resources::unlimited();
    if random.one_in(3) {
        limits.milli_cpus = if random.one_in(3) { 1000 } else { random.between(1, 4000) };
    }
    if random.one_in(3) {
        limits.object_store_memory = random.between(1, 1000);
    }
    let consumer = Consumer {
        micros: if random.one_in(3) { 2000 } else { random.between(0, 50) },
        hangs_up_after: random.one_in(6).then(|| random.between(1, 20) as usize),
        stops_after: random.one_in(8).then(|| random.between(1, 20) as usize),
    };
    Plan { stages, ordered: random.one_in(2), limits, consumer }
}

fn machine(milli_cpus: u64, object_store_memory: u64) -> Resources {
    Resources { milli_cpus, memory: 2000, object_store_memory, ..Resources::default() }
}

/// Everything by chance, from one seed.
fn simulate(seed: u64) -> World {
    let mut world = random_world(seed);
    world.run();
    world.verify();
    world
}

fn random_world(seed: u64) -> World {
    let mut random = Random(seed);
    let mut total = machine(random.between(1, 8) * 1000, random.between(1, 5000));
    total.milli_gpus = random.below(3) * 1000;
    let plans = (0..random.between(1, 4)).map(|_| random_plan(&mut random, &total)).collect();
    let policies = match random.below(5) {
        4 => vec![Arc::new(Never) as _],
        0 => policies_by_name("").unwrap(),
        1 => policies_by_name("adaptive_concurrency_cap").unwrap(),
        _ => default_policies(),
    };
    World::new(seed, total, policies, plans)
}

/// A policy that would never let anything happen.
#[derive(Debug)]
struct Never;

impl BackpressurePolicy for Never {
    fn name(&self) -> &'static str {
        "Never"
    }

    fn can_start(&self, _op: OpView<'_>) -> bool {
        false
    }

    fn output_bytes(&self, _op: OpView<'_>) -> Option<u64> {
        Some(0)
    }
}

fn default_policies() -> Vec<Arc<dyn BackpressurePolicy>> {
    policies_by_name(&BlockyardOptions::default().backpressure_policies).unwrap()
}

/// Raise this to look for more.
const SEEDS: u64 = 1500;

#[test]
fn random_plans_never_stall_and_lose_nothing() {
    let mut grants = 0;
    for seed in 0..SEEDS {
        let world = std::panic::catch_unwind(|| simulate(seed));
        grants += world.unwrap_or_else(|_| panic!("seed {seed}")).grants;
    }
    assert!(grants as u64 > 20 * SEEDS, "{grants} grants are hardly a test");
}

/// Runs plans on a machine until nothing happens any more, under the policies of a session.
fn run(seed: u64, total: Resources, plans: Vec<Plan>) -> World {
    let mut world = World::new(seed, total, default_policies(), plans);
    world.run();
    world.verify();
    world
}

/// What the simulation is for: it finds the stall of tasks that keep what they have while others have to make their
/// input.
#[test]
fn random_plans_stall_when_tasks_hold_what_others_need() {
    let stalls = (0..SEEDS / 10).filter(|seed| {
        let mut world = random_world(*seed);
        world.holds_while_waiting = true;
        world.run();
        world.queries.iter().any(World::is_stalled)
    });
    assert!(stalls.count() > 0, "the simulation has no plans that tell");
}

/// A task that has the only CPU begins above a sort, whose input is a stage that needs this CPU.
#[test]
fn a_stage_above_a_barrier_leaves_the_cpu_to_those_below() {
    for leaf in [Leaf::Exchange, Leaf::Sort, Leaf::Join, Leaf::Zip] {
        for holds in [false, true] {
            let below = Stage { max_tasks: Some(2), needs: cpus(250), ..Stage::default() };
            let above = Stage { leaf, tasks: 2, max_tasks: Some(2), ..Stage::default() };
            let stages = vec![source(8), below.clone(), above, Stage { leaf, tasks: 1, ..below }];
            let limits = Resources { milli_cpus: 1000, ..Resources::unlimited() };
            let plan = Plan { limits, ..chain(stages) };
            let mut world = World::new(1, machine(2000, 1000), default_policies(), vec![plan]);
            world.holds_while_waiting = holds;
            world.run();
            assert_eq!(World::is_stalled(&world.queries[0]), holds && leaf != Leaf::Exchange, "{leaf:?}, {holds}");
        }
    }
}

fn chain(stages: Vec<Stage>) -> Plan {
    let inputs = |place: usize| if place == 0 { vec![] } else { vec![place - 1] };
    let stages =
        stages.into_iter().enumerate().map(|(place, stage)| Stage { inputs: inputs(place), ..stage }).collect();
    Plan { stages, ordered: true, limits: Resources::unlimited(), consumer: Consumer::default() }
}

fn source(tasks: usize) -> Stage {
    Stage { tasks, ..Stage::default() }
}

/// Ray #57979: each of 200 tasks asks for more memory than the machine has.
#[test]
fn tasks_that_ask_for_more_memory_than_there_is_run_one_by_one() {
    let needs = Resources { memory: 1 << 40, ..cpus(1000) };
    let world = run(1, machine(4000, 1000), vec![chain(vec![source(200), Stage { needs, ..Stage::default() }])]);
    assert_eq!(world.queries[0].ops[1].max_open, 1);
}

/// A pool follows the backlog within seconds, and is not larger than the slowest stage can use.
#[test]
fn a_pool_grows_with_the_backlog() {
    let pool = |min, max| Some(PoolSpec { min, max: Some(max), max_tasks_in_flight: 2 });
    let few = Resources { milli_cpus: 100, ..Resources::default() };
    let slow = Stage { pool: pool(1, 8), needs: few.clone(), max_micros: 1_000_000, ..Stage::default() };
    let fast = Stage { pool: pool(0, 8), needs: few, max_micros: 100, ..Stage::default() };
    let world = run(1, machine(4000, 100_000), vec![chain(vec![source(200), slow, fast])]);
    let ops = &world.queries[0].ops;
    assert_eq!((ops[1].max_open, ops[1].max_actors), (8, 8));
    assert!(ops[2].max_actors < 8, "{} actors", ops[2].max_actors);
    // A task takes a second on average, one half before it gives its block and one after.
    assert!(world.queries[0].ended_at < 200 * 1_000_000 / 8 * 11 / 10, "{} us", world.queries[0].ended_at);
}

/// Stages that wait for their input leave their processors to it, whatever is reserved for them.
#[test]
fn processors_are_not_kept_for_stages_that_have_nothing_to_do() {
    let read = Stage { needs: cpus(500), max_micros: 10_000, ..source(200) };
    let quick = Stage { max_micros: 10, ..Stage::default() };
    let stages = std::iter::once(read).chain(vec![quick; 5]).collect();
    let world = run(1, machine(2000, 100_000), vec![chain(stages)]);
    // A task takes ten milliseconds on average, one half before it gives its block and one after; four run at once.
    let ideal = 200 * 10_000 / 4;
    assert!(world.queries[0].ended_at < ideal * 5 / 4, "{} us", world.queries[0].ended_at);
}

/// Ray #64601: the store is full, CPUs are idle, and nothing moves.
#[test]
fn a_store_of_less_than_one_block_is_no_reason_to_stop() {
    let many = Stage { fan_out: 10, max_bytes: 1000, ..source(20) };
    run(1, machine(4000, 1), vec![chain(vec![many, Stage::default(), Stage { fan_out: 10, ..Stage::default() }])]);
}

/// Ray #59144: stages before a GPU stage take the whole budget, so that it never starts.
#[test]
fn a_gpu_stage_gets_its_turn() {
    let needs = Resources { milli_gpus: 1000, milli_cpus: 4000, ..Resources::default() };
    let gpu = Stage { needs, max_micros: 1000, ..Stage::default() };
    let total = Resources { milli_gpus: 1000, ..machine(4000, 500) };
    run(1, total, vec![chain(vec![Stage { fan_out: 10, ..source(50) }, Stage::default(), gpu])]);
}

/// Ray #42008, #34042: one consumer stops taking, and all others wait for it.
#[test]
fn a_consumer_that_stops_holds_nobody_up_and_its_queue_does_not_grow() {
    let stopped = Plan {
        consumer: Consumer { stops_after: Some(1), ..Consumer::default() },
        ..chain(vec![Stage { fan_out: 5, ..source(100) }, Stage::default()])
    };
    let world = run(1, machine(2000, 1000), vec![stopped, chain(vec![source(100), Stage::default()])]);
    assert!(world.queries[1].ended);
    let waiting: usize = world.core.statuses(world.time()).iter().map(|op| op.queued_blocks).sum();
    assert!(waiting < 30, "{waiting} blocks wait for nobody");
    assert_eq!(world.core.statuses(world.time()).iter().map(|op| op.running).sum::<usize>(), 0);
}

/// Ray #51966: a limit is reached, and upstream goes on.
#[test]
fn a_consumer_that_hangs_up_ends_the_query() {
    let consumer = Consumer { hangs_up_after: Some(3), ..Consumer::default() };
    let world = run(1, machine(2000, 1000), vec![Plan { consumer, ..chain(vec![source(1000), Stage::default()]) }]);
    assert!(world.queries[0].ops[0].next_task < 50, "{} tasks", world.queries[0].ops[0].next_task);
}

/// Queries share what there is: the last of eight ends not much later than the first.
#[test]
fn eight_queries_end_at_about_the_same_time() {
    let plan = chain(vec![source(50), Stage { max_tasks: Some(8), ..Stage::default() }]);
    let mut world = World::new(1, machine(2000, 1000), default_policies(), vec![plan; 8]);
    world.run();
    world.verify();
    let ends: Vec<_> = world.queries.iter().map(|query| query.ended_at).collect();
    let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    assert!(first * 10 >= last * 8, "{ends:?}");
}

#[test]
fn a_query_waits_for_itself_when_nothing_else_can_be_waited_for() {
    let seconds = Duration::from_secs;
    let told = |waits_outside: bool, consumer_waits: bool, quiet: u64| {
        let total = Resources { milli_cpus: 1000, ..Resources::default() };
        let mut core = Core::new(total, Vec::new(), Ranking::default());
        let limits = Resources { milli_cpus: 1000, ..Resources::default() };
        let last = OpSpec { waits_outside, ..OpSpec::default() };
        let last = core.add(1, &limits, last, seconds(1)).unwrap();
        let first = OpSpec { consumer: Some(last), ..OpSpec::default() };
        core.add(1, &limits, first, seconds(1)).unwrap();
        core.consumer_waits(last, consumer_waits, seconds(1));
        core.waits_for_itself(1, seconds(quiet), seconds(16))
    };
    assert_eq!(told(false, true, 60), Some(seconds(15)));
    assert_eq!(told(false, true, 12), Some(seconds(12)));
    assert_eq!(told(false, true, 9), None, "something was under way");
    assert_eq!(told(false, false, 60), None, "nobody asks for more");
    assert_eq!(told(true, true, 60), None, "it may wait for others");
}
