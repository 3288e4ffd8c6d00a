"""Writes vectors.json: what Python's jinja2, set up as transformers does it, makes
of the templates below. Run with jinja2 3.1.6: python3 vectors.py > vectors.json"""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

DATA = {
    "s": 'Hello <b> "World"', "t": " pad\n", "n": 3, "f": 2.5, "l": [3, 1, 2], "d": {"b": 1, "a": "x", "Items": [1]},
    "none_": None, "e": "", "big": 12345678901234567890,
    "msgs": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "n": 2},
             {"role": "User", "content": "b", "n": 1}],
}

EXPRESSIONS = """
s + t; s + n; s + none_; s + l; n + f; l + l; l + s; u + s; s + u; n - 1; n - s; 7 / 2; 7 // 2; -7 // 2; -7 % 3; 7.5 % 2
1 / 0; n * 2; "ab" * n; l * 2; s * s; 2 ** 3; -n; -s; s ~ n ~ none_ ~ u; 1 + 2 ~ 3; "a" ~ 1 + 2
"%s-%02d" % ("a", 7); "%s" % s; "%d" % f; "%s %s" % ("a",); "%s" % ("a", "b"); "%.2f" % f; "%5s|" % "ab"; "100%%" % ()
1 == 1.0; 1 == true; "1" == 1; l == [3, 1, 2]; (1, 2) == [1, 2]; 1 < 2 < 3; 1 < 3 < 2; "a" < "b"; n < s; n < none_; u < 1
"el" in s; n in l; "b" in d; n in s; n in none_; n in u; n not in l; none_ in l
u; u.x; u["x"]; d.zz; d.zz.y; d["zz"]; d["a"]; d.Items; none_.x; none_.x.y; l[0]; l[-1]; l[9]; l[9].x; s[1]; s[-1]; s[99]; n.x
l[1:]; l[::-1]; s[:2]; s[-3:]; none_[1:]; d[1:]; u[1:]; l[:-1]; s[::2]
none_ or "x"; "" or 0; 1 and u; not u; (1 if u); (1 if u else 2); (1 if 0) is defined
s|length; none_|length; u|length; n|length; s|upper; s|lower; s|title; "don't stop"|title; s|capitalize; t|trim; " x "|trim; "xxaxx"|trim("x")
l|sort; ["b", "A", "a"]|sort; ["b", "A", "a"]|sort(case_sensitive=true); msgs|sort(attribute="role")|map(attribute="role")|list; l|sort(reverse=true)
[1, "a"]|sort; d|dictsort|length; l|join(","); msgs|join("-", attribute="role"); none_|join; [none_, 1, "a", l]|join("|"); [big]|join
l|first; l|last; []|first; none_|first; l|sum; l|max; l|min; l|reverse|list; s|reverse; none_|list; u|list; s|list|length; (l|unique|list); l|batch(2)|list
msgs|map(attribute="n")|list|length; msgs|selectattr("content")|list|length; msgs|selectattr("role", "equalto", "user")|list|length
msgs|rejectattr("n", "defined")|list|length; none_|selectattr("x")|list; n|selectattr("x")|list; l|map("string")|join; l|select("odd")|list; l|reject("odd")|list
d|items|list|length; none_|items|list; u|items|list; d|tojson; msgs|tojson; s|tojson; big|tojson; u|tojson; f|tojson; 1.0|tojson; 1e22|tojson; 1e-7|tojson
d|tojson(indent=2); []|tojson(indent=2); l|tojson(indent=0); l|tojson(separators=(",", ":")); d|tojson(sort_keys=true); "é\\u2028\\U0001f680"|tojson; "é\\U0001f680\\x7f"|tojson(ensure_ascii=true); d|tojson(wat=1)
"\\x01\\t\\n\\"\\\\/"|tojson; 3.7|int; "12"|int; "x"|int; "x"|int(5); "3.9"|int; n|float; "x"|float; f|round; 2.5|round; 3.5|round; n|round; 2.675|round(2); f|round(method="ceil"); s|round; -3|abs
u|default("D"); none_|default("D"); ""|default("D", true); "a\\nb"|indent(2); "a\\nb"|indent(2, true); s|replace("l", "L"); s|replace("l", "L", 1); "a b"|wordcount; s|nosuch
s|e; s|safe; (s|safe) + "<"; "<" + (s|safe); "<" ~ (s|safe); (s|e) + "&"; ("<"|safe|trim) + ">"; "%s|%d"|format("a", 3); "%s"|format(1, 2)
s|string; l|string; none_|string; d|string; [1.0, true, none_, "it's", 'q"', "\\u200b", big]|string; {"a": (1,)}|string; []|string
u is defined; s is string; n is number; true is number; true is integer; n is integer; big is number; f is float; d is mapping; l is sequence; d is sequence; none_ is sequence
u is iterable; none_ is iterable; s is iterable; none_ is none; n is odd; n is even; n is divisibleby 3; n is divisibleby(2); "a" is in "abc"; n is in l; n is eq 3; s is nosuch; not n is string
s.upper(); s.split(); s.split("l"); s.split("l", 1); s.split("l", maxsplit=1); s.rsplit("l", 1); "a  b ".split(); " a b c".split(none, 1); s.split("")
s.strip('"H'); t.strip(); t.rstrip(); t.lstrip(); s.startswith("He"); s.startswith(("x", "H")); s.startswith("ell", 1); s.startswith("e", -3, none); s.endswith("l", 0, 4); s.startswith(1); s.startswith(); s.endswith(('a', '"')); s.endswith('"'); s.find("W"); s.index("zz"); s.count("l"); "a\\nb\\r\\nc".splitlines(); ",".join(["a", "b"]); ",".join([1])
"Hello".removeprefix("He"); "Hello".removesuffix("lo"); "it's ok".title(); "12".isdigit(); none_.strip(); l.strip(); d.get("a"); d.get("zz"); d.get("zz", 1); d.keys()|list; d.values()|list; d.items()|length
l.append(1); d.update({}); d.pop("a"); l.index(1); l.count(9); d.nope(); raise_exception("no " + s); strftime_now("%d %b %Y"); strftime_now("%-d|%e|%j|%I:%M %p|%y|%A|%%|%Q"); range(3)|list; range(2, 8, 3)|list; range(3, 0, -1)|list; range(0)|list; range("a")
dict(a=1, b=2)|tojson; namespace(a=1).a; null; none; none_ is sameas none; [u]|length; {"a": 1}.a; ("a" "b"); "\\u00e9\\n\\'"; 1_000; 0x1f; 1e3; (1, "a"); [1, "a"]; 'a' 'b'; 1 if true else 2 if true
"""

TEMPLATES = [
    "a\n", "a\n\n", "a\r\nb\r\n", "  {% if 1 %}\n  x\n  {% endif %}\n  y", "{%- if 1 %} x {%- endif %}  y", "a  {%+ if 1 %}b{% endif +%}\nc",
    "a {#- c -#} b", "a\n  {# c #}\nb", "{{ 1 -}}  \n b", "b \n {{- 1 }}", "x{% raw %}{{ a }} {% b %}{% endraw %}y", "  {% raw -%}\n {{ a }} {%- endraw %}\n z",
    "{% for x in l %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ x }};{% endfor %}", "{% for x in [] %}a{% else %}b{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.length }}{{ x }}{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in l %}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{{ x }}{% break %}{% else %}e{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}e{% endfor %}",
    "{% for x in l %}{% continue %}{% else %}e{% endfor %}", "{% for x in [] %}{% break %}{% else %}e{{ n }}{% endfor %}",
    "{% for x in none_ %}{% endfor %}", "{% for x in n %}{% endfor %}", "{% for x in u %}{% endfor %}ok", "{% for c in 'abc' %}{{ c }}-{% endfor %}",
    "{% for x in l %}{% set y = x %}{% endfor %}{{ y }}", "{% set ns = namespace(a=0, items=5) %}{% for x in l %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}{{ ns.items }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set x %} a {{ n }}{% endset %}[{{ x }}]", "{% set x | trim | upper %} a {% endset %}[{{ x }}]",
    "{% set ns = namespace() %}{% set ns.x %}q{% endset %}{{ ns.x }}", "{% macro m(a, b='z') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}x{{ n }}{% endcall %}", "{% macro m(x) %}{% if x %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
    "{% macro m(x, y) %}{{ x }}{{ y }}{% endmacro %}{{ m(*[1, 2]) }}", "{% set f = [] %}{% macro m() %}m{% endmacro %}{% set f = [m] %}{{ f[0]() }}{{ f[0](*[]) }}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aa{% endfilter %}", "{% generation %}g{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% block x %}y{% endblock x %}", "{% if u %}1{% elif n %}2{% else %}3{% endif %}", "{% if s is string and not none_ %}a{% endif %}",
    "{% for x in l recursive %}{{ x }}{% endfor %}", "{% for m in msgs %}{{ loop.previtem.role if loop.previtem }}{{ loop.nextitem is defined }};{% endfor %}",
    "{% for m in msgs %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{{ '{{' }}{{ '{%' }}{", "a{ b } {{ '{' }}{% if 1 %}{{% endif %}",
    "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ [1, 2][0] }}{{ (1, 2)[1] }}", "{%- set x = 'a' if n else 'b' -%} {{ x }}", "{{ joiner('|')() }}", "{% set j = joiner(',') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{{ caller() }}", "{{ nofunc() }}", "{{ s() }}", "{% set x = d %}{{ x.a }}{{ x['b'] }}", "{% for _ in range(3) %}.{% endfor %}", "{{ l[n - 1] }}", "{{ msgs[-1].content }}{{ msgs[0]['role'] }}",
    "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b, c in [[1, 2, 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
]


def environment():
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.datetime(2026, 3, 5, 19, 8, 9).strftime
    return env


def main():
    env = environment()
    sources = ["{{ " + x.strip() + " }}" for line in EXPRESSIONS.strip().split("\n") for x in line.split("; ")]
    cases = []
    for source in sources + TEMPLATES:
        case = {"template": source}
        try:
            case["ok"] = env.from_string(source).render(**json.loads(json.dumps(DATA)))
        except Exception as e:  # whatever Python raises, rendering must fail
            case["error"] = f"{type(e).__name__}: {e}"
        cases.append(case)
    print(json.dumps({"data": DATA, "cases": cases}, ensure_ascii=False, indent=1))


main()
