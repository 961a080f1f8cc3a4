//! The C interface of on-line profiling (`include/memgauge.h`, `man/memgauge.3`).
//!
//! Every function of it catches panics: none crosses into C. `NULL` where an object
//! belongs is an error, not a crash. Numbers and layouts are those of the header;
//! `tests/examples.rs` compares them.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use memgauge_online::{
    Clean, Error, ErrorKind, Latency, Profiler, Reader, Sample, Settings, Sharing, Source, State,
    Statistics, WhenFull,
};

mod layout;

use layout::{CSample, CSettings, CStatistics};

/// A profiler.
pub struct CProfiler(Profiler);

/// A reader. Calls from several threads wait for each other.
pub struct CReader(Mutex<(Reader, Vec<Sample>)>);

const BAD_ARGUMENT: c_int = -1;
const MISSING: c_int = -2;
const REFUSED: c_int = -3;
const SYSTEM: c_int = -4;
const PANICKED: c_int = -5;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

fn say(message: &str) {
    let text: Vec<u8> = message.bytes().filter(|b| *b != 0).collect();
    MESSAGE.with(|m| *m.borrow_mut() = CString::new(text).unwrap_or_default());
}

fn code(error: &Error) -> c_int {
    match error.kind() {
        ErrorKind::Usage | ErrorKind::BadInput => BAD_ARGUMENT,
        ErrorKind::Missing => MISSING,
        ErrorKind::Refused | ErrorKind::NoSuchTask => REFUSED,
        _ => SYSTEM,
    }
}

fn absent(what: &str) -> Error {
    Error::usage(format!("failed to call memgauge: {what} is NULL"))
}

/// Runs what a function does; its error or panic becomes a code and a message.
fn guarded<T: Into<i64>>(call: impl FnOnce() -> Result<T, Error>) -> i64 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value.into(),
        Ok(Err(error)) => {
            say(&error.in_full());
            code(&error).into()
        }
        Err(_) => {
            say("failed inside memgauge: please report it");
            PANICKED.into()
        }
    }
}

fn plain(call: impl FnOnce() -> Result<(), Error>) -> c_int {
    guarded(|| call().map(|()| 0)) as c_int
}

/// # Safety
/// NULL, or an object that this library made and that was not freed.
unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| absent(what))
}

/// # Safety
/// NULL, or room for a value.
unsafe fn put<T>(into: *mut T, value: T, what: &str) -> Result<(), Error> {
    if into.is_null() {
        return Err(absent(what));
    }
    // SAFETY: not NULL, and as the caller promises.
    unsafe { into.write(value) };
    Ok(())
}

/// Why the last call of this thread failed; valid until its next call fails.
#[unsafe(no_mangle)]
pub extern "C" fn memgauge_error() -> *const c_char {
    MESSAGE.with(|m| m.borrow().as_ptr())
}

/// # Safety
/// NULL, or a structure whose `size` says how large it is.
unsafe fn settings(given: *const CSettings) -> Result<Settings, Error> {
    // SAFETY: as the caller promises.
    let given = unsafe { object(given, "settings") }?;
    if given.size != size_of::<CSettings>() {
        return Err(Error::usage(format!(
            "failed to take settings of `{}` bytes: this library's have {}: call memgauge_settings_init",
            given.size,
            size_of::<CSettings>()
        )));
    }
    let source = match given.event.is_null() {
        true => Source::Clock,
        // SAFETY: the header asks for a text that ends with a NUL.
        false => Source::Pmu(text(unsafe { CStr::from_ptr(given.event) })?),
    };
    let mut settings = Settings::of(source);
    settings.period = (given.period > 0).then_some(given.period);
    settings.kernel = given.kernel != 0;
    settings.physical = given.physical != 0;
    settings.buffer = usize::try_from(given.buffer).unwrap_or(usize::MAX);
    settings.when_full = match given.when_full {
        0 => WhenFull::OverwriteOldest,
        1 => WhenFull::RefuseNewest,
        other => return Err(unknown("when_full", other)),
    };
    settings.latency = match given.latency_ms {
        10 => Latency::TenMilliseconds,
        1 => Latency::OneMillisecond,
        other => return Err(unknown("latency_ms", other)),
    };
    Ok(settings)
}

fn text(given: &CStr) -> Result<String, Error> {
    let text = given.to_str().map(str::to_owned);
    text.map_err(|_| Error::usage("failed to read an event's name: it is no UTF-8"))
}

fn unknown(what: &str, value: c_int) -> Error {
    Error::usage(format!("failed to take {what} `{value}`: see memgauge.h"))
}

fn sharing(given: c_int) -> Result<Sharing, Error> {
    match given {
        0 => Ok(Sharing::Each),
        1 => Ok(Sharing::Queue),
        other => Err(unknown("sharing", other)),
    }
}

/// Fills in the usual settings: source clock.
///
/// # Safety
/// `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_settings_init(into: *mut CSettings) -> c_int {
    // SAFETY: as the caller promises.
    plain(|| unsafe { put(into, CSettings::usual(), "settings") })
}

/// Makes a profiler.
///
/// # Safety
/// `given` is NULL or was filled in; `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_profiler_new(
    given: *const CSettings,
    into: *mut *mut CProfiler,
) -> c_int {
    plain(|| {
        // SAFETY: as the caller promises.
        unsafe { put(into, std::ptr::null_mut(), "profiler") }?;
        // SAFETY: as the caller promises.
        let profiler = Profiler::new(unsafe { settings(given) }?)?;
        let made = Box::into_raw(Box::new(CProfiler(profiler)));
        // SAFETY: not NULL, as above.
        unsafe { put(into, made, "profiler") }
    })
}

/// Frees a profiler. Readers of it may read on what was sampled.
///
/// # Safety
/// NULL, or a profiler that is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_profiler_free(profiler: *mut CProfiler) {
    if !profiler.is_null() {
        // SAFETY: made by `memgauge_profiler_new`, and freed once.
        let profiler = unsafe { Box::from_raw(profiler) };
        let _ = plain(|| {
            drop(profiler);
            Ok(())
        });
    }
}

/// Functions of a profiler with a number, and what they do.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) => $call:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `profiler` is NULL or a profiler that was not freed.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(profiler: *const CProfiler, $($arg: $kind),*) -> i64 {
            guarded(|| {
                // SAFETY: as the caller promises.
                let profiler = &unsafe { object(profiler, "profiler") }?.0;
                let call: fn(&Profiler, $($kind),*) -> Result<i64, Error> = $call;
                call(profiler, $($arg),*)
            })
        }
    )*};
}

operations! {
    /// Switches all sampling on.
    memgauge_on() => |p| { p.on(); Ok(0) };
    /// Switches all sampling off.
    memgauge_off() => |p| { p.off(); Ok(0) };
    /// Adds a thread.
    memgauge_add_thread(tid: u32) => |p, tid| p.add_thread(tid).map(|()| 0);
    /// Adds a process; the number of threads added.
    memgauge_add_process(pid: u32) => |p, pid| p.add_process(pid).map(|n| n as i64);
    /// Deletes a thread.
    memgauge_delete_thread(tid: u32) => |p, tid| p.delete_thread(tid).map(|()| 0);
    /// Deletes a process; the number of threads deleted.
    memgauge_delete_process(pid: u32) => |p, pid| p.delete_process(pid).map(|n| n as i64);
    /// Lets a thread's sampling go on.
    memgauge_start(tid: u32) => |p, tid| p.start(tid).map(|()| 0);
    /// Stops a thread's sampling.
    memgauge_stop(tid: u32) => |p, tid| p.stop(tid).map(|()| 0);
    /// Changes a thread's period; what it became.
    memgauge_set_period(tid: u32, period: u64) =>
        |p, tid, period| p.set_period(tid, period).map(|n| n as i64);
    /// Changes the period of threads added later; what it became.
    memgauge_set_period_of_new(period: u64) =>
        |p, period| p.set_period_of_new(period).map(|n| n as i64);
    /// Changes the buffer of threads added later.
    memgauge_set_buffer_of_new(samples: u64) => |p, samples| {
        p.set_buffer_of_new(usize::try_from(samples).unwrap_or(usize::MAX)).map(|()| 0)
    };
    /// Threads that were to be followed and were not sampled.
    memgauge_missed() => |p| Ok(p.missed() as i64);
    /// Forgets threads that have ended and whose samples were read, with `all` also
    /// those with samples; the number of threads.
    memgauge_clean(all: c_int) => |p, all| {
        let which = if all != 0 { Clean::All } else { Clean::Read };
        Ok(p.clean(which).len() as i64)
    };
}

/// Counts of a thread.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_get_statistics(
    profiler: *const CProfiler,
    tid: u32,
    into: *mut CStatistics,
) -> c_int {
    plain(|| {
        // SAFETY: as the caller promises.
        let counts = unsafe { object(profiler, "profiler") }?.0.statistics(tid)?;
        // SAFETY: as the caller promises.
        unsafe { put(into, CStatistics::of(&counts), "statistics") }
    })
}

/// Opens a reader of a thread, or of all for 0.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_new(
    profiler: *const CProfiler,
    tid: u32,
    how: c_int,
    into: *mut *mut CReader,
) -> c_int {
    plain(|| {
        // SAFETY: as the caller promises.
        unsafe { put(into, std::ptr::null_mut(), "reader") }?;
        // SAFETY: as the caller promises.
        let profiler = &unsafe { object(profiler, "profiler") }?.0;
        let reader = match tid {
            0 => profiler.reader(sharing(how)?)?,
            tid => profiler.reader_of(tid, sharing(how)?)?,
        };
        let made = Box::into_raw(Box::new(CReader(Mutex::new((reader, Vec::new())))));
        // SAFETY: not NULL, as above.
        unsafe { put(into, made, "reader") }
    })
}

/// Frees a reader.
///
/// # Safety
/// NULL, or a reader that is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_free(reader: *mut CReader) {
    if !reader.is_null() {
        // SAFETY: made by `memgauge_reader_new`, and freed once.
        let reader = unsafe { Box::from_raw(reader) };
        let _ = plain(|| {
            drop(reader);
            Ok(())
        });
    }
}

/// A descriptor that is readable while samples may wait. It is the reader's.
///
/// # Safety
/// `reader` is NULL or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_fd(reader: *const CReader) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let reader = unsafe { object(reader, "reader") }?;
        let inner = reader.0.lock().unwrap_or_else(|e| e.into_inner());
        Ok(inner.0.as_fd().as_raw_fd())
    }) as c_int
}

/// Waits at most so long; 1: samples may be there, 0: the time has passed.
///
/// # Safety
/// `reader` is NULL or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_wait(reader: *const CReader, longest_ms: u32) -> c_int {
    guarded(|| {
        // SAFETY: as the caller promises.
        let reader = unsafe { object(reader, "reader") }?;
        let inner = reader.0.lock().unwrap_or_else(|e| e.into_inner());
        let longest = Duration::from_millis(longest_ms.into());
        Ok(i32::from(inner.0.wait(longest)))
    }) as c_int
}

/// Reads at most so many samples; how many came.
///
/// # Safety
/// `reader` is NULL or was not freed; `into` has room for `most` samples.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_read(
    reader: *const CReader,
    into: *mut CSample,
    most: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: as the caller promises.
        let reader = unsafe { object(reader, "reader") }?;
        if into.is_null() {
            return Err(absent("samples"));
        }
        let mut inner = reader.0.lock().unwrap_or_else(|e| e.into_inner());
        let (reader, samples) = &mut *inner;
        samples.clear();
        reader.read(samples, most);
        for (at, sample) in samples.iter().enumerate() {
            // SAFETY: `at` is below `most`, for which there is room.
            unsafe { into.add(at).write(CSample::of(sample)) };
        }
        Ok(samples.len() as i64)
    })
}
