"""The conversion error: one message, one envelope."""

import json
import pickle

from recipe.errors import ConversionError


def test_the_text_of_an_error_is_its_message() -> None:
    assert str(ConversionError("no such thing")) == "no such thing"


def test_the_body_is_the_compact_envelope_of_all_protocols() -> None:
    error = ConversionError('say "é"\n')
    assert error.status_code == 400
    assert error.body == (
        '{"error":{"message":"say \\"é\\"\\n","type":"invalid_request_error",'
        '"param":null,"code":"invalid_request_error"}}'
    )
    assert json.loads(error.body)["error"]["message"] == str(error)


def test_an_error_survives_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(ConversionError("x", 422)))
    assert (str(error), error.status_code) == ("x", 422)
