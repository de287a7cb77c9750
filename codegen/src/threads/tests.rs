//! Jobs under all circumstances: many, nested, from several threads, with more threads than
//! processors, and with panics.

use super::*;
use std::sync::atomic::AtomicU64;

const MANY: usize = 1 << 20;

/// Gives a job and checks that each of its parts is done once.
fn check(pool: &Pool, parts: usize) {
    let counts: Vec<AtomicU64> = (0..parts).map(|_| AtomicU64::new(0)).collect();
    pool.each(parts, &|i| {
        counts[i].fetch_add(1, Ordering::Relaxed);
    });
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{counts:?}");
}

#[test]
fn something_runs_once_on_each_thread_also_beside_jobs() {
    let pool = Pool::new(3, 4).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..200).for_each(|_| pool.each(4, &|_| std::thread::yield_now())));
        for _ in 0..50 {
            let seen = Mutex::new(Vec::new());
            pool.on_each(&|| seen.lock().unwrap().push(std::thread::current().id()));
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable_by_key(|id| format!("{id:?}"));
            seen.dedup();
            assert!(seen.len() == 3 && !seen.contains(&std::thread::current().id()));
        }
    });
}

#[test]
fn every_part_is_done_once() {
    for (workers, processors) in [(0, MANY), (1, MANY), (3, MANY), (7, 1)] {
        let pool = Pool::new(workers, processors).unwrap();
        for round in 0..2000 {
            check(&pool, round % 11);
        }
    }
}

#[test]
fn threads_help_whether_they_sleep_or_not() {
    for processors in [MANY, 1] {
        let pool = Pool::new(1, processors).unwrap();
        for round in 0..20 {
            if round % 4 == 0 {
                thread::sleep(2 * LINGER);
            }
            // Neither part ends before the other has begun.
            let barrier = std::sync::Barrier::new(2);
            let names = Mutex::new(Vec::new());
            pool.each(2, &|_| {
                barrier.wait();
                names.lock().unwrap().push(thread::current().name().map(str::to_owned));
            });
            let names = names.into_inner().unwrap();
            let helped = names.iter().filter(|n| n.as_deref() == Some("tracecast-1")).count();
            assert_eq!((names.len(), helped), (2, 1));
        }
    }
}

#[test]
fn the_caller_sleeps_while_others_work() {
    let pool = Pool::new(1, MANY).unwrap();
    let caller = thread::current().id();
    for _ in 0..5 {
        let barrier = std::sync::Barrier::new(2);
        let slept = AtomicU64::new(0);
        pool.each(2, &|_| {
            barrier.wait();
            if thread::current().id() != caller {
                thread::sleep(10 * LINGER);
                slept.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(slept.into_inner(), 1);
    }
}

#[test]
fn jobs_inside_of_jobs_and_of_several_callers() {
    let pool = Pool::new(2, MANY).unwrap();
    let total = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    pool.each(3, &|_| {
                        pool.each(4, &|j| {
                            total.fetch_add(j as u64, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 4 * 300 * 3 * 6);
}

#[test]
fn many_crews_at_once() {
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for round in 0..20 {
                    let pool = Pool::new(3, 1 + round % 4).unwrap();
                    (0..round * 5).for_each(|_| check(&pool, 4));
                    pool.wake();
                }
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_when_all_is_done() {
    let pool = Pool::new(1, MANY).unwrap();
    for part in [0, 1, 4] {
        let done = AtomicU64::new(0);
        let job = || {
            pool.each(5, &|i| {
                assert!(i != part, "part {i}");
                done.fetch_add(1, Ordering::Relaxed);
            });
        };
        let panic = catch_unwind(AssertUnwindSafe(job)).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("part {part}"));
        assert_eq!(done.into_inner(), 4);
        check(&pool, 9);
    }
}
