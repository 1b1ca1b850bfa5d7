use minijinja::context;
use proptest::prelude::*;

use super::*;

fn render(source: &str, variables: Value) -> Result<String, String> {
    CompiledTemplate::new(source, TemplateDate::DEFAULT).map_err(|e| e.to_string())?.render(variables)
}

#[track_caller]
fn assert_renders(source: &str, expected: &str) {
    let variables = context! {
        text => "  a\u{1c}b \u{1c}",
        message => context! { role => "user", content => "Grüße \"x\"\n\u{7f}\u{1}" },
        list => vec![1, 2],
        empty => Vec::<Value>::new(),
        tools => Value::from(()),
    };
    assert_eq!(render(source, variables).as_deref(), Ok(expected), "{source}");
}

/// The same templates under Jinja2 3.1 with transformers' environment give the same strings.
#[test]
fn renders_like_jinja2() {
    assert_renders("{% if true %}\n  x\n{% endif %}\n  y", "  x\n  y");
    assert_renders("a\n   {% set x = 1 %}\nb", "a\nb");
    assert_renders(
        "{{ none }} {{ true }} {{ missing }} {{ 1.0 }} {{ ['a', none] }}",
        "None True  1.0 ['a', None]",
    );
    assert_renders("{{ text|trim }}|{{ text.strip() }}|{{ text.rstrip() }}", "a\u{1c}b|a\u{1c}b|  a\u{1c}b");
    assert_renders("{{ '##a#'.lstrip('#') }}{{ '##a#'|trim('#') }}", "a#a");
    assert_renders("{{ 'a</think>b</think>c'.split('</think>')[-1] }}", "c");
    assert_renders("{{ 'a b c'.rsplit(' ', 1) }}{{ ' a  b '.rsplit() }}", "['a b', 'c']['a', 'b']");
    assert_renders("{{ 'k=v=w'.partition('=') }}", "('k', '=', 'v=w')");
    assert_renders("{{ 'abc'.removeprefix('a').removesuffix('c') }}", "b");
    assert_renders("{% for x in [1,2,3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13");
    assert_renders("{% for x in [1,2,3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1");
    assert_renders(
        "{% set ns = namespace(a=0) %}{% for x in list %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}",
        "3",
    );
    assert_renders("{{ message is mapping }} {{ 'a' is sequence }} {{ 1 is iterable }}", "True True False");
    assert_renders("{{ list[::-1] }} {{ 'abc'[1:] }} {{ 'ab' * 2 }} {{ 'a' ~ 1 }}", "[2, 1] bc abab a1");
    assert_renders("{{ 'yes' if tools is not none and tools else 'no' }}", "no");
    assert_renders("{{ message.get('x', 'd') }}{{ message['role'] }}", "duser");
    assert_renders("{% generation %}\n x\n{% endgeneration %}\n", " x\n");
    assert_renders("a {%- generation -%} x {%- endgeneration -%} b", "axb");
    assert_renders("{{ strftime_now('%d %b %Y, %A %-m/%y %j') }}", "26 Jul 2024, Friday 7/24 208");
}

#[test]
fn tojson_is_pythons() {
    assert_renders(
        "{{ message|tojson }}",
        "{\"role\": \"user\", \"content\": \"Grüße \\\"x\\\"\\n\u{7f}\\u0001\"}",
    );
    assert_renders("{{ 'ü😀\u{7f}'|tojson(ensure_ascii=true) }}", "\"\\u00fc\\ud83d\\ude00\\u007f\"");
    assert_renders(
        "{{ {'b': list, 'a': empty}|tojson(indent=2) }}",
        "{\n  \"b\": [\n    1,\n    2\n  ],\n  \"a\": []\n}",
    );
    assert_renders(
        "{{ {'b': 1, 'a': none}|tojson(separators=(',', ':'), sort_keys=true) }}",
        "{\"a\":null,\"b\":1}",
    );
    assert_renders(
        "{{ [1.0, 1e16, 1e-5, 0.1, 123456.789, true, -0.0]|tojson }}",
        "[1.0, 1e+16, 1e-05, 0.1, 123456.789, true, -0.0]",
    );
    assert_renders("{{ '<a>&\\''|tojson }}", "\"<a>&'\"");
    assert!(render("{{ missing|tojson }}", context! {}).is_err(), "an undefined value is no JSON");
}

#[test]
fn a_template_can_refuse() {
    let error = render("{{ raise_exception('roles must alternate') }}", context! {}).unwrap_err();
    assert!(error.contains("roles must alternate"), "{error}");
    assert!(render("{{ missing.attribute }}", context! {}).is_err());
    assert!(render("{% if %}", context! {}).is_err());
    assert!(render("{{ strftime_now('%Q') }}", context! {}).is_err());
}

#[test]
fn dates() {
    assert_eq!("2024-02-29".parse::<TemplateDate>().unwrap().to_string(), "2024-02-29");
    for wrong in ["2023-02-29", "2024-13-01", "24", "", "2024-07-26-1", "a-b-c", "0-1-1"] {
        assert!(wrong.parse::<TemplateDate>().is_err(), "{wrong}");
    }
}

proptest! {
    /// Neither templates nor what they are given can take the process down.
    #[test]
    fn nothing_panics(source in "(\\{\\{|\\}\\}|\\{%|%\\}| generation| endgeneration|-|text|\\|trim|\\|tojson|\\[|\\]|for x in |endfor|é|'){0,12}", text in ".*") {
        let _ = render(&source, context! { text });
    }

    #[test]
    fn tojson_reads_back(text in "\\PC*|[\\x00-\\x7f]*", ascii: bool) {
        let json = render("{{ text|tojson(ensure_ascii=ascii) }}", context! { text => text.as_str(), ascii }).unwrap();
        prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        prop_assert!(!ascii || json.is_ascii());
    }
}
