"""The pattern matcher: first match wins, nothing is lost, and origins decide what counts as equal."""

from recipe.stream.matcher import Literal, Match, Matcher, Pattern, PatternSet
from recipe.stream.segment import ANY, PLAIN, SPECIAL


def plain(*texts: str) -> Matcher:
    return Matcher(PatternSet([Pattern(text, Literal(text)) for text in texts]))


def found(match: Match | None) -> tuple[str, int, int] | None:
    return None if match is None else (match.pattern.text, match.end, match.length)


def test_the_match_that_is_completed_first_wins() -> None:
    assert found(plain("abaac", "b", "aac").scan("aabaac", ANY, 0)) == ("b", 3, 1)


def test_at_a_tie_the_first_pattern_of_the_list_wins() -> None:
    assert found(plain("bc", "abc").scan("abc", ANY, 0)) == ("bc", 3, 2)
    assert found(plain("abc", "bc").scan("abc", ANY, 0)) == ("abc", 3, 3)


def test_a_match_is_found_across_pieces_and_says_how_much_of_it_came_before() -> None:
    matcher = plain("STOP")
    assert matcher.scan("one ST", ANY, 0) is None
    assert matcher.held == 2
    assert matcher.scan("O", ANY, 0) is None
    assert matcher.held == 3
    assert found(matcher.scan("P two", ANY, 0)) == ("STOP", 1, 4)
    assert matcher.held == 0


def test_a_failed_match_falls_back_to_its_longest_border() -> None:
    matcher = plain("aab")
    assert found(matcher.scan("aaab", ANY, 0)) == ("aab", 4, 3)
    assert matcher.scan("aaa", ANY, 0) is None
    assert matcher.held == 2


def test_newlines_before_a_pattern_are_part_of_its_match() -> None:
    matcher = Matcher(PatternSet([Pattern("end", Literal("</t>"), absorbs_newlines=True)]))
    assert matcher.scan("a\n\n", ANY, 0) is None
    assert matcher.held == 2
    assert found(matcher.scan("\n</t>b", ANY, 0)) == ("</t>", 5, 7)


def test_a_newline_that_breaks_off_a_match_is_no_part_of_the_next() -> None:
    matcher = Matcher(PatternSet([Pattern("end", Literal("</t>"), absorbs_newlines=True)]))
    assert found(matcher.scan("<\n</t>", ANY, 0)) == ("</t>", 6, 4)


def test_a_special_literal_matches_a_special_token_and_free_text_but_no_plain_token() -> None:
    patterns = PatternSet([Pattern("end", Literal("</t>", special=True))])
    assert Matcher(patterns).scan("</t>", PLAIN, 0) is None
    assert Matcher(patterns).scan("</t>", SPECIAL, 0) is not None
    assert Matcher(patterns).scan("</t>", ANY, 0) is not None


def test_a_plain_literal_matches_no_special_token() -> None:
    assert plain("</t>").scan("</t>", SPECIAL, 0) is None
    assert plain("</t>").scan("</t>", PLAIN, 0) is not None


def test_a_pattern_of_both_kinds_matches_across_origins() -> None:
    matcher = Matcher(PatternSet([Pattern("block", Literal("<"), Literal("DSML", special=True))]))
    assert matcher.scan("<", PLAIN, 0) is None
    assert matcher.scan("DSML", SPECIAL, 0) is not None


def test_empty_patterns_match_nothing() -> None:
    assert plain("").scan("text", ANY, 0) is None
    assert plain("").scan("", ANY, 0) is None
